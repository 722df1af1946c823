// A block with a hole and a ball cut out of it.
SetFactory("OpenCASCADE");
Box(1) = {0, 0, 0, 2, 1, 1};
Cylinder(2) = {0.5, 0.5, -1, 0, 0, 3, 0.2};
Sphere(3) = {1.5, 0.5, 1, 0.3};
BooleanDifference(4) = { Volume{1}; Delete; }{ Volume{2, 3}; Delete; };
Mesh.CharacteristicLengthMax = 0.05;
