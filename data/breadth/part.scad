// A plate with holes, rounded, and a screw cut from it.
$fn = 36;
difference() {
  minkowski() { cube([40, 20, 4]); sphere(1.5); }
  for (x = [5 : 7 : 36], y = [5 : 6 : 16]) translate([x, y, -5]) cylinder(h = 20, r = 1.6);
  translate([20, 10, 0]) linear_extrude(height = 12, twist = 180, slices = 14) square([6, 3], center = true);
}
