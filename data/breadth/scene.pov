// Balls of glass over a floor, with two lights.
#version 3.7;
global_settings { assumed_gamma 1.0 max_trace_level 8 }
camera { location <0, 4, -12> look_at <0, 1, 0> }
light_source { <8, 12, -9> color rgb 1 area_light <2, 0, 0>, <0, 0, 2>, 3, 3 }
light_source { <-9, 6, -4> color rgb 0.4 }
plane { y, 0 pigment { checker color rgb 0.9, color rgb 0.2 } finish { reflection 0.15 } }
#declare R = seed(2011);
#declare I = 0;
#while (I < 90)
  sphere {
    <8 * rand(R) - 4, 3 * rand(R) + 0.3, 8 * rand(R) - 3>, 0.2 + 0.3 * rand(R)
    pigment { color rgbf <rand(R), rand(R), rand(R), 0.6> }
    finish { reflection 0.2 specular 0.6 }
    interior { ior 1.4 }
  }
  #declare I = I + 1;
#end
