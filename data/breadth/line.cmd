model in "line.bug"
data in "line.data"
compile, nchains(2)
parameters in "line.init"
initialize
update 4000
monitor a
monitor b
update 12000
coda *
exit
