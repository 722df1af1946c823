# SPDX-License-Identifier: Apache-2.0
"""Packaged programs by kind: the table that `scripts/bench breadth` goes through.

What is expected is written here before a program is tried. A program of which nothing is expected has one working
thread and repeats itself: whoever brings it would call a refusal wrong.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Refusal:
    """An expected refusal. `why`: what a person would accept. `says`: a pattern that the message must contain."""

    why: str
    says: str


@dataclass(frozen=True)
class Program:
    """One command, as typed. `packages`: the distribution's, parted by blanks, the first names the version.

    inputs: files of data/breadth or of data/make_breadth_data.py, copied into the folder where the command runs.
    prepare: a line for the shell that makes what else the command reads; not measured.
    status: exit status of a run that went well. aside: not tried while somebody works on what it may show.
    """

    name: str
    kind: str
    packages: str
    command: str
    inputs: str = ""
    prepare: str = ""
    stdin: str = "/dev/null"
    status: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    refusal: Refusal | None = None
    aside: bool = False

    @property
    def argv(self) -> tuple[str, ...]:
        return tuple(shlex.split(self.command))

    @property
    def package(self) -> str:
        return self.packages.split()[0]


THREADS = Refusal("works with several threads", r"threads|\ba thread\b")
CLOCK = Refusal("works until a time is over", r"differ|disagree|repeat|clock|timer|marker")
RANDOM = Refusal("draws random numbers", r"differ|disagree|repeat|random|marker")
IN_PLACE = Refusal("changes the file that it is given", r"no longer as when the build began")
PROCESSES = Refusal("works with several processes at once", r"processes|child|worker")

PROGRAMS = (
    # interpreters
    Program("lua", "interpreter", "lua5.4", "lua5.4 work.lua 4", "work.lua"),
    Program("ruby", "interpreter", "ruby", "ruby work.rb", "work.rb"),
    Program("gawk", "interpreter", "gawk", "gawk -f words.awk text-60m", "words.awk text-60m"),
    Program("php", "interpreter", "php8.2-cli", "php work.php", "work.php"),
    Program("tclsh", "interpreter", "tcl", "tclsh work.tcl", "work.tcl"),
    Program("perl", "interpreter", "perl", "perl work.pl text-20m", "work.pl text-20m"),
    Program("python3", "interpreter", "python3", "python3 work.py text-20m", "work.py text-20m"),
    Program("swipl", "interpreter", "swi-prolog-nox", "swipl -q -g main -t halt work.pro", "work.pro"),
    Program("sbcl", "interpreter", "sbcl", "sbcl --noinform --eval '(defvar *scale* 60)' --load work.lisp --quit",
            "work.lisp"),
    Program("ocaml", "interpreter", "ocaml-nox", "ocaml work.ml", "work.ml"),
    Program("guile", "interpreter", "guile-3.0", "guile --no-auto-compile work.scm", "work.scm", aside=True),
    Program("gforth", "interpreter", "gforth", "gforth work.fs", "work.fs", aside=True),
    Program("clisp", "interpreter", "clisp", "clisp -q work.lisp", "work.lisp", aside=True),
    Program("node", "interpreter", "nodejs", "node work.js", "work.js", aside=True),
    Program("luajit", "interpreter", "luajit", "luajit work.lua 4", "work.lua", aside=True),
    Program("escript", "interpreter", "erlang-base", "escript work.erl", "work.erl", aside=True, refusal=THREADS),
    Program("octave", "interpreter", "octave", "octave --no-gui work.m", "work.m"),
    Program("numpy", "interpreter", "python3-numpy", "/usr/bin/python3 work_numpy.py", "work_numpy.py"),
    Program("mono", "interpreter", "mono-runtime mono-mcs", "mono Work.exe", "Work.cs", "mcs -out:Work.exe Work.cs"),
    Program("scheme", "interpreter", "chezscheme", "scheme --script work.ss", "work.ss"),
    Program("java", "interpreter", "openjdk-17-jre-headless", "java Work.java", "Work.java", aside=True,
            refusal=THREADS),
    # compilers
    Program("gcc", "compiler", "gcc", "gcc -O2 -c source.c", "source.c"),
    Program("ocamlopt", "compiler", "ocaml-nox", "ocamlopt -c source.ml", "source.ml"),
    Program("gfortran", "compiler", "gfortran", "gfortran -O2 -c source.f90", "source.f90"),
    Program("nasm", "compiler", "nasm", "nasm -f elf64 source.asm", "source.asm"),
    Program("fpc", "compiler", "fp-compiler-3.2.2", "fpc source.pas", "source.pas", aside=True),
    Program("sdcc", "compiler", "sdcc", "sdcc -c --std-c99 module.c", "module.c", aside=True),
    Program("bison", "compiler", "bison", "bison source.y", "source.y", aside=True),
    Program("cppcheck", "compiler", "cppcheck", "cppcheck --enable=all source.c", "source.c", aside=True),
    # compressors
    Program("zstd", "compressor", "zstd", "zstd -19 -f text-4m", "text-4m"),
    Program("xz", "compressor", "xz-utils", "xz -k -f -9 text-4m", "text-4m"),
    Program("brotli", "compressor", "brotli", "brotli -f -q 10 text-4m", "text-4m"),
    Program("lzip", "compressor", "lzip", "lzip -k -f -9 text-4m", "text-4m"),
    Program("7z", "compressor", "p7zip-full", "7z a -mx=9 archive.7z text-4m", "text-4m", refusal=THREADS),
    Program("pigz", "compressor", "pigz", "pigz -k -f -9 text-60m", "text-60m", refusal=THREADS),
    Program("lz4", "compressor", "lz4", "lz4 -f -12 text-60m", "text-60m", aside=True),
    Program("zopfli", "compressor", "zopfli", "zopfli text-1m", "text-1m", aside=True),
    Program("bzip2", "compressor", "bzip2", "bzip2 -k -f text-60m", "text-60m", aside=True),
    # media
    Program("flac", "media", "flac", "flac -f -8 -e -p sound.wav", "sound.wav"),
    Program("oggenc", "media", "vorbis-tools", "oggenc -q 6 long.wav", "long.wav"),
    Program("sox", "media", "sox", "sox long.wav out.wav reverb 60 echo 0.8 0.9 500 0.3 rate -v 48000", "long.wav"),
    Program("optipng", "media", "optipng netpbm", "optipng -o5 picture.png", "picture.ppm",
            "pnmtopng picture.ppm > picture.png", refusal=IN_PLACE),
    Program("ffmpeg", "media", "ffmpeg", "ffmpeg -y -f image2 -loop 1 -i picture.ppm -frames:v 40 -c:v libx264 out.mkv",
            "picture.ppm", refusal=THREADS),
    Program("gm", "media", "graphicsmagick", "gm convert picture.ppm -blur 0x8 -resize 150% -sharpen 0x4 out.jpg",
            "picture.ppm", refusal=THREADS),
    Program("opusenc", "media", "opus-tools", "opusenc --bitrate 96 long.wav out.opus", "long.wav", aside=True),
    Program("espeak-ng", "media", "espeak-ng", "espeak-ng -f text-60k -w out.wav", "text-60k", aside=True),
    Program("wavpack", "media", "wavpack", "wavpack -y -hh -x4 sound.wav", "sound.wav", aside=True),
    Program("lame", "media", "lame", "lame -q 0 --quiet sound.wav out.mp3", "sound.wav", aside=True),
    Program("cwebp", "media", "webp netpbm", "cwebp -quiet -m 6 -q 90 picture.png -o out.webp", "picture.ppm",
            "pnmscale 9 picture.ppm | pnmtopng > picture.png", aside=True),
    # satisfiability
    Program("minisat", "SAT", "minisat", "minisat random.cnf", "random.cnf", status=20),
    Program("cadical", "SAT", "cadical", "cadical -q random.cnf", "random.cnf", status=20),
    Program("picosat", "SAT", "picosat", "picosat random.cnf", "random.cnf", status=20),
    Program("cryptominisat5", "SAT", "cryptominisat", "cryptominisat5 --verb 0 random.cnf", "random.cnf", status=20,
            aside=True),
    Program("clasp", "SAT", "clasp", "clasp random.cnf", "random.cnf", status=20, aside=True),
    # satisfiability modulo theories
    Program("z3", "SMT", "z3", "z3 shop.smt2", "shop.smt2"),
    Program("cvc4", "SMT", "cvc4", "cvc4 --incremental shop.smt2", "shop.smt2"),
    Program("boolector", "SMT", "boolector", "boolector factors.smt2", "factors.smt2", status=10),
    Program("cvc5", "SMT", "cvc5", "cvc5 factors.smt2", "factors.smt2", aside=True),
    # linear and integer programs
    Program("glpsol", "LP and MIP", "glpk-utils", "glpsol --lp facilities.lp -o out.sol", "facilities.lp"),
    Program("cbc", "LP and MIP", "coinor-cbc", "cbc facilities.lp solve solution out.sol", "facilities.lp"),
    Program("lp_solve", "LP and MIP", "lp-solve", "lp_solve knapsack.lp", "knapsack.lp"),
    Program("clp", "LP and MIP", "coinor-clp", "clp transport.mps -dualsimplex -solution out.sol", "transport.mps",
            aside=True),
    Program("symphony", "LP and MIP", "coinor-symphony", "symphony -L facilities.lp", "facilities.lp", aside=True),
    Program("minizinc", "LP and MIP", "minizinc flatzinc", "minizinc --solver gecode ruler.mzn", "ruler.mzn"),
    # circuits
    Program("ngspice", "circuits", "ngspice", "ngspice -b ladder.cir", "ladder.cir"),
    Program("yosys", "circuits", "yosys berkeley-abc", "yosys -q -p 'synth -top cpu -flatten' cpu.v", "cpu.v"),
    Program("vvp", "circuits", "iverilog", "vvp cpu.vvp", "cpu.v bench.v", "iverilog -o cpu.vvp cpu.v bench.v"),
    Program("abc", "circuits", "berkeley-abc", "berkeley-abc -c 'gen -N 48 -m mult.blif; strash; balance; rewrite; "
            "refactor; balance; dch; if -K 6; print_stats'", aside=True),
    # sequences
    Program("mafft", "sequences", "mafft", "mafft proteins.fa", "proteins.fa"),
    Program("bowtie2", "sequences", "bowtie2", "bowtie2 -x genome -U reads.fq -S out.sam", "genome.fa reads.fq",
            "bowtie2-build -q genome.fa genome"),
    Program("blastn", "sequences", "ncbi-blast+", "blastn -task blastn -query families.fa -db genome -out hits.txt",
            "genome.fa families.fa", "makeblastdb -in genome.fa -dbtype nucl -out genome"),
    Program("fasttree", "sequences", "fasttree", "fasttree -nt -gtr aligned.fa", "aligned.fa"),
    Program("samtools", "sequences", "samtools bwa", "samtools mpileup -E -f genome.fa -o pileup.txt sorted.bam",
            "genome.fa reads.fq",
            "bwa index genome.fa && bwa mem genome.fa reads.fq | samtools sort -o sorted.bam"),
    Program("muscle", "sequences", "muscle", "muscle -align few-proteins.fa -output out.fa", "few-proteins.fa",
            refusal=THREADS),
    Program("vsearch", "sequences", "vsearch", "vsearch --cluster_fast families.fa --id 0.9 --centroids out.fa",
            "families.fa", aside=True, refusal=THREADS),
    Program("cd-hit-est", "sequences", "cd-hit", "cd-hit-est -i families.fa -o out -c 0.9", "families.fa", aside=True),
    Program("exonerate", "sequences", "exonerate", "exonerate --model affine:local genes.fa genes.fa", "genes.fa",
            aside=True),
    Program("prodigal", "sequences", "prodigal", "prodigal -q -i genome.fa -o genes.gbk", "genome.fa", aside=True),
    # chemistry
    Program("gromacs", "chemistry", "gromacs", "gmx mdrun -nt 1 -s argon.tpr -nsteps 12000",
            "argon.gro argon.top argon.mdp",
            "gmx grompp -f argon.mdp -c argon.gro -p argon.top -o argon.tpr -maxwarn 9"),
    Program("obabel", "chemistry", "openbabel", "obabel molecules.smi -O out.inchi", "molecules.smi"),
    Program("mopac", "chemistry", "mopac", "mopac water.mop", "water.mop",
            environment={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}),
    Program("xtb", "chemistry", "xtb", "xtb caffeine.xyz --ohess", "caffeine.xyz",
            environment={"OMP_NUM_THREADS": "1"}),
    # geometry
    Program("qconvex", "geometry", "qhull-bin", "qconvex s TI points o TO hull", "",
            "rbox 100000 D4 t2011 s > points"),
    Program("openscad", "geometry", "openscad", "openscad -o part.stl part.scad", "part.scad"),
    Program("tetgen", "geometry", "tetgen", "tetgen -pq1.2a0.000005 cube.poly", "cube.poly"),
    Program("lrs", "geometry", "lrslib", "lrs cube.ine", "cube.ine", aside=True),
    Program("gmsh", "geometry", "gmsh", "gmsh -3 block.geo -o block.msh", "block.geo", aside=True),
    # rendering and drawing
    Program("tachyon", "rendering", "tachyon", "tachyon balls.dat -numthreads 1 -o out.tga", "balls.dat"),
    Program("povray", "rendering", "povray", "povray +Iscene.pov +W320 +H240 -D", "scene.pov", refusal=THREADS),
    Program("gnuplot", "rendering", "gnuplot-nox", "gnuplot plot.gnuplot", "plot.gnuplot points.dat"),
    Program("dot", "rendering", "graphviz", "dot -Tsvg graph.dot -o graph.svg", "graph.dot"),
    Program("potrace", "rendering", "potrace netpbm", "potrace -s picture.pbm", "picture.ppm",
            "pnmscale 6 picture.ppm | ppmtopgm | pgmtopbm > picture.pbm", aside=True),
    # databases
    Program("sqlite3", "databases", "sqlite3", "sqlite3 :memory:", "queries.sql", stdin="queries.sql"),
    Program("recsel", "databases", "recutils", "recsel -e 'Age > 30' -S City -p Name,City contacts.rec",
            "contacts.rec"),
    Program("kchashtest", "databases", "kyotocabinet-utils", "kchashtest order casket.kch 1500000"),
    Program("tchtest", "databases", "tokyocabinet-bin", "tchtest write casket.tch 4000000", aside=True),
    Program("ledger", "databases", "ledger", "ledger -f year.journal register --sort amount Assets", "year.journal",
            aside=True),
    Program("hledger", "databases", "hledger", "hledger -f year.journal balance", "year.journal", aside=True),
    # cryptography
    Program("openssl-enc", "cryptography", "openssl", "openssl enc -aes-256-cbc -pbkdf2 -iter 5000000 "
            "-S 0011223344556677 -pass pass:secret -in text-1m -out text.enc", "text-1m"),
    Program("openssl-speed", "cryptography", "openssl", "openssl speed -seconds 1 sha256", refusal=CLOCK),
    Program("openssl-genrsa", "cryptography", "openssl", "openssl genrsa -out key.pem 6144", refusal=RANDOM),
    Program("argon2", "cryptography", "argon2", "argon2 somesalt -t 20 -m 16 -p 1", "secret", stdin="secret"),
    Program("sha512sum", "cryptography", "coreutils", "sha512sum text-60m text-60m text-60m text-60m text-60m text-60m "
            "text-60m text-60m text-60m text-60m text-60m text-60m text-60m text-60m text-60m text-60m", "text-60m",
            aside=True),
    # text
    Program("grep", "text", "grep", "grep -E -c -i '([a-z])\\1.*([a-z])\\2' text-1m", "text-1m"),
    Program("sed", "text", "sed", "sed -E 's/([a-z]+) ([a-z]+)/\\2 \\1/g; s/[0-9]+\\./N/' text-20m", "text-20m"),
    Program("sort", "text", "coreutils", "sort -k2,2 text-60m -o sorted", "text-60m", refusal=THREADS),
    Program("xsltproc", "text", "xsltproc", "xsltproc -o table.html table.xsl sales.xml", "table.xsl sales.xml"),
    Program("jq", "text", "jq", "jq 'group_by(.shop) | map({shop: .[0].shop, sum: (map(.price) | add)})' objects.json",
            "objects.json"),
    Program("datamash", "text", "datamash", "datamash -s -g 1 mean 2 median 3 unique 3", "values.tsv",
            stdin="values.tsv", aside=True, refusal=PROCESSES),
    Program("hunspell", "text", "hunspell hunspell-en-us", "hunspell -l -d en_US text-400k", "text-400k", aside=True),
    # games
    Program("gnugo", "games", "gnugo", "gnugo --benchmark 16 --seed 1 --level 10"),
    Program("stockfish", "games", "stockfish", "stockfish bench 16 1 12"),
    Program("gnuchess", "games", "gnuchess", "gnuchess --manual", "moves.txt", stdin="moves.txt"),
    # documents
    Program("groff", "documents", "groff", "groff -ms -Tps account.ms", "account.ms"),
    Program("ps2pdf", "documents", "ghostscript groff", "ps2pdf account.ps account.pdf", "account.ms",
            "groff -ms -Tps account.ms > account.ps"),
    Program("pdflatex", "documents", "texlive-latex-base", "pdflatex -interaction=batchmode article.tex", "article.tex",
            "pdflatex -interaction=batchmode article.tex && pdflatex -interaction=batchmode article.tex"),
    Program("pdftoppm", "documents", "poppler-utils groff ghostscript", "pdftoppm -r 60 account.pdf page", "account.ms",
            "groff -ms -Tps account.ms > account.ps && ps2pdf account.ps account.pdf"),
    Program("mutool", "documents", "mupdf-tools groff ghostscript", "mutool draw -r 90 -o page%d.png account.pdf",
            "account.ms", "groff -ms -Tps account.ms > account.ps && ps2pdf account.ps account.pdf", aside=True),
    Program("pandoc", "documents", "pandoc", "pandoc account.md -o account.html", "account.md", aside=True),
    Program("tesseract", "documents", "tesseract-ocr tesseract-ocr-eng groff ghostscript",
            "tesseract page.png out", "account.ms",
            "groff -ms -Tps account.ms | gs -q -o page.png -sDEVICE=pnggray -r150 -dLastPage=1 -",
            aside=True, refusal=THREADS),
    # statistics
    Program("Rscript", "statistics", "r-base-core", "Rscript work.R", "work.R"),
    Program("pspp", "statistics", "pspp", "pspp study.sps -o out.txt", "study.sps"),
    Program("gretlcli", "statistics", "gretl", "gretlcli -b work.inp", "work.inp"),
    Program("jags", "statistics", "jags", "jags line.cmd", "line.bug line.cmd line.init line.data", aside=True),
    Program("svm-train", "statistics", "libsvm-tools", "svm-train -q labelled.txt", "labelled.txt", aside=True),
    # algebra
    Program("gp", "algebra", "pari-gp", "gp -q work.gp", "work.gp"),
    Program("maxima", "algebra", "maxima", "maxima --very-quiet -b work.mac", "work.mac"),
    Program("gap", "algebra", "gap-core", "gap -q work.g", "work.g"),
    Program("geng", "algebra", "nauty", "nauty-geng -u 10", aside=True),
    Program("calc", "algebra", "apcalc", "calc -q -f work.cal", "work.cal", aside=True),
    Program("primesieve", "algebra", "primesieve-bin", "primesieve 20e9", aside=True, refusal=THREADS),
    # simulation
    Program("ccx", "simulation", "calculix-ccx", "ccx beam", "beam.inp"),
    Program("git-repack", "simulation", "git", "git -C history repack -adf", "history.txt",
            "git init -q history && git -C history fast-import --quiet < history.txt", aside=True, refusal=THREADS),
)  # fmt: skip

KINDS = tuple(dict.fromkeys(program.kind for program in PROGRAMS))


def in_turn(programs: Sequence[Program]) -> list[Program]:
    """The first program of each kind, then the second of each: whatever time there is, it goes to all kinds."""
    seen: dict[str, int] = {}
    place: dict[str, int] = {}
    for program in programs:
        place[program.name] = seen[program.kind] = seen.get(program.kind, 0) + 1
    return sorted(programs, key=lambda program: place[program.name])


def named(names: list[str] | None, aside: bool) -> list[Program]:
    """The programs to try: those named, or all in turn; those set aside only with `aside`. Raises ValueError."""
    known = {program.name: program for program in PROGRAMS}
    if unknown := [name for name in names or () if name not in known]:
        raise ValueError(f"no program {', '.join(unknown)}; there are: {', '.join(known)}")
    chosen = [known[name] for name in names] if names else in_turn(PROGRAMS)
    if kept := [program.name for program in chosen if names and program.aside and not aside]:
        raise ValueError(f"{', '.join(kept)}: set aside; --aside tries them")
    return [program for program in chosen if aside or not program.aside]
