# SPDX-License-Identifier: Apache-2.0
"""Scripts of two phases each, for interpreters of many kinds: numbers are summed, then words are made and searched.

`numbers` and `words` are one phase each; what is the same in all phases of a script (definitions) comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Script:
    """The interpreter's command, %s for the script's path, its package, and the text of each phase."""

    command: tuple[str, ...]
    package: str
    numbers: str
    words: str


SCRIPTS = {
    "python3": Script(
        ("/usr/bin/python3", "-I", "%s"), "python3",
        "s = 0\nfor i in range(6000000):\n    s = (s * 31 + i) % 1000003\nprint(s)\n",
        "n = 0\nfor i in range(1500000):\n    w = 'word' + str(i)\n    n += w.find('99') + len(w.upper())\nprint(n)\n",
    ),
    "perl": Script(
        ("/usr/bin/perl", "%s"), "perl-base",
        "my $s = 0; for (my $i = 0; $i < 7000000; $i++) { $s = ($s * 31 + $i) % 1000003; } print \"$s\\n\";",
        "my $n = 0; for my $i (1..2500000) { my $w = \"word$i\"; $n++ if $w =~ /9[0-4]9/; $n += length(uc $w); } "
        "print \"$n\\n\";",
    ),
    "lua5.4": Script(
        ("/usr/bin/lua5.4", "%s"), "lua5.4",
        "local s = 0 for i = 1, 40000000 do s = (s * 31 + i) % 1000003 end print(s)",
        "local n = 0 for i = 1, 2000000 do local w = 'word' .. i if w:find('99') then n = n + #w:upper() end end "
        "print(n)",
    ),
    "mawk": Script(
        ("/usr/bin/mawk", "-f", "%s"), "mawk",
        "BEGIN { for (i = 0; i < 9000000; i++) s = (s * 31 + i) % 1000003; print s }",
        "BEGIN { for (i = 0; i < 2000000; i++) { w = \"word\" i; "
        "if (index(w, \"99\")) n += length(toupper(w)) } print n }",
    ),
    "gawk": Script(
        ("/usr/bin/gawk", "-f", "%s"), "gawk",
        "BEGIN { for (i = 0; i < 6000000; i++) s = (s * 31 + i) % 1000003; print s }",
        "BEGIN { for (i = 0; i < 2000000; i++) { w = \"word\" i; "
        "if (index(w, \"99\")) n += length(toupper(w)) } print n }",
    ),
    "tclsh": Script(
        ("/usr/bin/tclsh", "%s"), "tcl",
        "proc f {} { set s 0; for {set i 0} {$i < 5000000} {incr i} { "
        "set s [expr {($s * 31 + $i) % 1000003}] }; puts $s }\nf\n",
        "proc f {} { set n 0; for {set i 0} {$i < 900000} {incr i} { set w \"word$i\"; if {[string first 99 $w] >= 0} "
        "{ incr n [string length [string toupper $w]] } }; puts $n }\nf\n",
    ),
    "bc": Script(
        ("/usr/bin/bc", "-q", "%s"), "bc",
        "s = 0\nfor (i = 0; i < 1500000; i++) s = (s * 31 + i) % 1000003\ns\nquit\n",
        "scale = 4000\nfor (k = 2; k < 9; k++) x = sqrt(k)\nx\nquit\n",
    ),
    "php": Script(
        ("/usr/bin/php", "-n", "-d", "opcache.enable_cli=0", "%s"), "php-cli",
        "<?php $s = 0; for ($i = 0; $i < 60000000; $i++) { $s = ($s * 31 + $i) % 1000003; } echo $s;",
        "<?php $n = 0; for ($i = 0; $i < 15000000; $i++) { $w = 'word' . $i; if (strpos($w, '99')) "
        "{ $n += strlen(strtoupper($w)); } } echo $n;",
    ),
}  # fmt: skip


def written(name: str, phase: str, folder: Path) -> list[str]:
    """The command line of one phase of a script, which is written into `folder`."""
    script = SCRIPTS[name]
    path = folder / f"{name}-{phase}"
    path.write_text(getattr(script, phase))
    return [word % path if "%s" in word else word for word in script.command]
