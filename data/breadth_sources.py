# SPDX-License-Identifier: Apache-2.0
"""Write programs and documents for compilers and typesetters: see make_breadth_data.py."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from make_bench_data import vocabulary

Maker = Callable[[random.Random, Path], None]
"""Makes one file at the path, or in the path's folder."""


def written(parts: Callable[[random.Random], Iterable[str]]) -> Maker:
    """A maker of a text file from its parts."""

    def make(rng: random.Random, path: Path) -> None:
        with path.open("w") as file:
            file.writelines(parts(rng))

    return make


def fortran(count: int) -> Maker:
    """Fortran 90: many subroutines of loops."""

    def parts(rng: random.Random) -> Iterator[str]:
        for number in range(count):
            yield f"subroutine s{number}(a, b, n)\n  integer :: n, i, j\n"
            yield "  real(8) :: a(n, n), b(n, n), t\n  do j = 2, n - 1\n"
            yield "    do i = 2, n - 1\n"
            for _ in range(6):
                yield f"      t = a(i - 1, j) * {rng.random():.3f}d0 + b(i, j + 1) * {rng.random():.3f}d0\n"
                yield f"      if (t > {rng.random():.3f}d0) then\n"
                yield "        b(i, j) = sqrt(abs(t)) + a(i, j)\n      else\n"
                yield f"        a(i, j) = t * b(i, j) - {rng.randint(1, 9)}\n      end if\n"
            yield f"    end do\n  end do\nend subroutine s{number}\n\n"

    return written(parts)


def pascal(count: int) -> Maker:
    """Pascal: many functions, and a program that calls them."""

    def parts(rng: random.Random) -> Iterator[str]:
        yield "program big;\n{$mode objfpc}\n"
        for number in range(count):
            yield f"function f{number}(x: longint; s: string): longint;\n"
            yield f"var i, t: longint;\nbegin\n  t := {rng.randint(1, 99)};\n"
            yield "  for i := 1 to x do begin\n"
            yield f"    if (i mod {rng.randint(2, 9)}) = 0 then t := t + i * {rng.randint(2, 9)}\n"
            yield f"    else t := t xor (i shl {rng.randint(1, 4)});\n"
            yield f"    if t > length(s) * {rng.randint(10, 99)} then t := t div 3;\n  end;\n"
            yield "  result := t;\nend;\n"
        for group in range(0, count, 50):
            calls = "".join(f"  writeln(f{n}({n % 50}, 'a{n}'));\n" for n in range(group, group + 50))
            yield f"procedure p{group};\nbegin\n{calls}end;\n"
        yield "begin\n" + "".join(f"  p{group};\n" for group in range(0, count, 50)) + "end.\n"

    return written(parts)


def functional(count: int) -> Maker:
    """OCaml: types, matches and loops in many functions."""

    def parts(rng: random.Random) -> Iterator[str]:
        for number in range(count):
            yield f"type t{number} = A{number} of int | B{number} of string * t{number} | C{number} of float list\n"
            yield f"let rec f{number} x n = match x with\n"
            yield f"  | A{number} i when i > n -> i * {rng.randint(2, 9)} + n\n"
            yield f"  | A{number} i -> f{number} (B{number} (string_of_int "
            yield f"i, A{number} (i + {rng.randint(1, 9)}))) (n - 1)\n"
            yield f"  | B{number} (s, r) -> String.length s + f{number} r (n + {rng.randint(1, 9)})\n"
            yield f"  | C{number} l -> int_of_float (List.fold_left "
            yield f"(fun a b -> a *. {rng.random():.3f} +. b) 0.0 l)\n"
            yield f"let g{number} n =\n  let a = Array.make (n + 1) {rng.randint(0, 9)} in\n  for i = 1 to n do\n"
            yield f"    a.(i) <- (a.(i - 1) * {rng.randint(2, 99)} + "
            yield f"f{number} (A{number} i) 3) mod {rng.randint(100, 999)}\n"
            yield "  done;\n  Array.fold_left (+) 0 a\n"

    return written(parts)


def assembly(count: int) -> Maker:
    """NASM: instructions, labels and macros."""

    def parts(rng: random.Random) -> Iterator[str]:
        yield "bits 64\nsection .text\n%macro twice 2\n  add %1, %2\n  add %1, %2\n%endmacro\n"
        registers = ("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11")
        for number in range(count):
            a, b = rng.sample(registers, 2)
            yield f"l{number}:\n  mov {a}, [{b} + {rng.randrange(4096)}]\n"
            yield f"  twice {a}, {b}\n  cmp {a}, {rng.randrange(10**6)}\n"
            yield f"  jne l{rng.randrange(max(0, number - 9), number + 1)}\n"
            yield f"  lea {b}, [{a} * 4 + {rng.randrange(64)}]\n"

    return written(parts)


def grammar(rules: int) -> Maker:
    """Bison: statements and expressions of many levels, so that the automaton is large."""

    def parts(rng: random.Random) -> Iterator[str]:
        yield "%token ID NUM END\n" + "".join(f"%token K{n} O{n}\n" for n in range(rules)) + "%%\nstart: list END;\n"
        yield "list: %empty | list statement;\nstatement: e0 ';'\n"
        yield "".join(f"  | K{n} '(' e{n} ')' statement K{(n + 1) % rules} list K{n}\n" for n in range(rules)) + ";\n"
        for n in range(rules):
            yield f"e{n}: e{n + 1} | e{n} O{n} e{n + 1} | K{rng.randrange(rules)} e{n} ',' e{n + 1} ')';\n"
        yield f"e{rules}: ID | NUM | '(' e0 ')';\n"

    return written(parts)


def manuscript(paragraphs: int) -> Maker:
    """groff -ms: headings, lists, tables of tabs, and paragraphs."""

    def parts(rng: random.Random) -> Iterator[str]:
        words = vocabulary(rng, 3000)
        yield ".TL\nAn account\n.AU\nNobody\n"
        for number in range(paragraphs):
            if number % 8 == 0:
                yield f".NH\n{' '.join(rng.choices(words, k=4))}\n"
            if number % 5 == 0:
                yield "".join(f".IP \\(bu\n{' '.join(rng.choices(words, k=12))}\n" for _ in range(3))
            yield f".PP\n{' '.join(rng.choices(words, k=110))}.\n"

    return written(parts)


def article(sections: int) -> Maker:
    """LaTeX: formulas, lists, and paragraphs."""

    def parts(rng: random.Random) -> Iterator[str]:
        words = vocabulary(rng, 3000)
        yield "\\documentclass{article}\n\\begin{document}\n\\tableofcontents\n"
        for number in range(sections):
            yield f"\\section{{{' '.join(rng.choices(words, k=3))}}}\n{' '.join(rng.choices(words, k=160))}.\n\n"
            yield f"\\[ \\sum_{{i=1}}^{{{number + 2}}} \\frac{{x_i^{{{number % 9}}}}}{{\\sqrt{{1 + y_i}}}} "
            yield f"= \\int_0^1 f_{{{number}}}(t)\\,dt \\]\n"
            yield "\\begin{itemize}\n" + "".join(f"\\item {' '.join(rng.choices(words, k=15))}\n" for _ in range(4))
            yield "\\end{itemize}\n"
        yield "\\end{document}\n"

    return written(parts)


def markdown(paragraphs: int) -> Maker:
    def parts(rng: random.Random) -> Iterator[str]:
        words = vocabulary(rng, 3000)
        for number in range(paragraphs):
            yield f"## {' '.join(rng.choices(words, k=3))}\n\n" if number % 6 == 0 else ""
            yield " ".join(f"*{w}*" if i % 17 == 0 else w for i, w in enumerate(rng.choices(words, k=90))) + ".\n\n"
            yield (
                "".join(f"- {' '.join(rng.choices(words, k=6))}\n" for _ in range(3)) + "\n" if number % 4 == 0 else ""
            )

    return written(parts)
