# A surface, a fit, and contours.
set terminal svg
set output "surface.svg"
set isosamples 240
set pm3d
set contour
set cntrparam levels 30
splot sin(x) * cos(y) * exp(-0.05 * (x * x + y * y))
unset pm3d
unset contour
unset colorbox
set output "fit.svg"
f(x) = a * sin(b * x) * exp(-c * x) + d
a = 1; b = 1.1; c = 0.1; d = 0.1
set fit quiet logfile "fit.log"
fit f(x) "points.dat" every 3 using 1:2 via a, b, c, d
plot "points.dat" every 3 using 1:2 with dots, f(x)
set output "parametric.svg"
set parametric
set urange [0:2*pi]
set vrange [0:2*pi]
set isosamples 240
splot cos(u)*(3+cos(v)), sin(u)*(3+cos(v)), sin(v) with pm3d
