model in "line.bug"
data in "line.data"
compile, nchains(2)
parameters in "line.init"
initialize
update 20000
monitor a
monitor b
update 60000
coda *
exit
