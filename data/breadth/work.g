# Groups, their classes, and a character table: three phases.
Print(Length(ConjugacyClasses(SymmetricGroup(13))), "\n");
g := Group((1,2,3,4,5,6,7,8,9,10,11), (3,7,11,8)(4,10,5,6));
Print(Size(g), " ", Length(ConjugacyClassesSubgroups(AlternatingGroup(7))), "\n");
s := 0;; for i in [1 .. 3000000] do s := (s * 31 + i) mod 1000003; od; Print(s, "\n");
Print(Length(Irr(CharacterTable("Symmetric", 12))), "\n");
QUIT;
