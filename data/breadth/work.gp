\\ Class numbers, an elliptic curve, factors, and a lattice: four phases.
default(parisizemax, "512M");
print(sum(d = 1, 12000, qfbclassno(-4 * d)));
print(sum(p = 2, 25000, if(isprime(p), ellap(ellinit([0, 0, 1, -1, 0]), p), 0)));
print(#factor(2^211 - 1)[, 1]);
print(sum(i = 1, 60, matdet(matrix(40, 40, a, b, (a * b * i) % 97 - 48)) % 1009));
quit
