#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the pictures, sounds, reads, scene and liquid that `scripts/bench accuracy` measures on.

Everything follows from one seed, through the standard library alone, so two machines compute on the same data.
Sizes are chosen for 3 to 6 seconds of each program on a machine of 2023.

Usage: make_media_data.py FOLDER [--seed N]
"""

from __future__ import annotations

import array
import math
import random
import wave
from pathlib import Path

from seeds import folder_and_seeds

NUCLEOTIDES = "ACGT"
_OPPOSITE = str.maketrans("ACGT", "TGCA")


def picture(rng: random.Random, path: Path, width: int, height: int) -> None:
    """PPM: smooth gradients, discs, stripes and grain in tiles, as photographs and drawings have side by side."""
    tile = 64
    waves = [(rng.uniform(0.002, 0.02), rng.uniform(0.002, 0.02), rng.uniform(0, 6)) for _ in range(3)]
    grain = bytes(rng.choices(range(256), k=1 << 16))
    kinds = [[rng.randrange(4) for _ in range(width // tile + 1)] for _ in range(height // tile + 1)]
    with path.open("wb") as file:
        file.write(b"P6\n%d %d\n255\n" % (width, height))
        for y in range(height):
            row = bytearray()
            noise = rng.randrange(1 << 15)
            shades = [127 + 100 * math.sin(b * y + c) for _, b, c in waves]
            for x in range(width):
                kind = kinds[y // tile][x // tile]
                for shade, (a, _, _) in zip(shades, waves, strict=True):
                    if kind == 0:
                        value = shade + 20 * a * (x % 500)
                    elif kind == 1:
                        value = shade + (grain[noise + x] - 128) / 4
                    elif kind == 2:
                        value = 230 if ((x % tile) - 32) ** 2 + ((y % tile) - 32) ** 2 < 600 else shade
                    else:
                        value = 40 if (x + y) % 16 < 8 else 200
                    row.append(max(0, min(255, int(value))))
            file.write(row)


def sound(rng: random.Random, path: Path, seconds: int) -> None:
    """WAV, two channels of 44,100 samples: chords, noise, silence, and mixtures of them, half a second each."""
    rate, table = 44100, [math.sin(2 * math.pi * i / 4096) for i in range(4096)]
    samples = array.array("h")
    for _ in range(2 * seconds):
        kind = rng.randrange(5)
        tones = [(rng.uniform(80, 2000), rng.uniform(500, 6000)) for _ in range(kind)]
        hiss = 0 if kind in (0, 1) else rng.choice((0, 300, 4000))
        steps = [(int(f * 4096 * 256 / rate), loud) for f, loud in tones]
        for i in range(rate // 2):
            value = sum(loud * table[(i * step >> 8) & 4095] for step, loud in steps)
            noise = rng.getrandbits(12) - 2048 if hiss else 0
            left = int(value + noise * hiss / 2048)
            samples.append(max(-32000, min(32000, left)))
            samples.append(max(-32000, min(32000, int(left * 0.7) + (noise >> 6))))
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())


def genome_and_reads(rng: random.Random, folder: Path, length: int, count: int) -> None:
    """FASTA with repeats, and reads of 100 letters with errors, of both strands (FASTQ)."""
    pieces: list[str] = []
    while sum(map(len, pieces)) < length:
        if pieces and rng.random() < 0.3:
            pieces.append(rng.choice(pieces))
        else:
            pieces.append("".join(rng.choices(NUCLEOTIDES, k=rng.randint(500, 5000))))
    genome = "".join(pieces)[:length]
    with (folder / "genome.fa").open("w") as file:
        file.write(">genome\n")
        file.writelines(genome[i : i + 80] + "\n" for i in range(0, length, 80))
    with (folder / "reads.fq").open("w") as file:
        for number in range(count):
            at = rng.randrange(length - 100)
            read = list(genome[at : at + 100])
            for _ in range(rng.choice((0, 0, 1, 2, 4))):
                read[rng.randrange(100)] = rng.choice(NUCLEOTIDES)
            text = "".join(read)
            text = text[::-1].translate(_OPPOSITE) if rng.random() < 0.5 else text
            file.write(f"@read{number}\n{text}\n+\n{'I' * 100}\n")


def scene(rng: random.Random, path: Path) -> None:
    """Tachyon: shiny balls over a floor, three lights."""
    lines = [
        "BEGIN_SCENE", "RESOLUTION 1000 800", "CAMERA", "ZOOM 1.0", "ASPECTRATIO 1.0", "ANTIALIASING 1", "RAYDEPTH 6",
        "CENTER 0 3 -14", "VIEWDIR 0 -0.15 1", "UPDIR 0 1 0", "END_CAMERA", "BACKGROUND 0.1 0.2 0.4",
    ]  # fmt: skip
    for x, y in ((-9, 12), (8, 14), (0, 20)):
        lines.append(f"LIGHT CENTER {x} {y} -6 RAD 0.3 COLOR 0.6 0.6 0.6")
    texture = "TEXTURE AMBIENT 0.1 DIFFUSE 0.6 SPECULAR 0.3 OPACITY {} COLOR {:.3f} {:.3f} {:.3f} TEXFUNC 0"
    for _ in range(220):
        x, y, z, size = rng.uniform(-9, 9), rng.uniform(0, 7), rng.uniform(-4, 14), rng.uniform(0.2, 0.9)
        colour = (rng.random(), rng.random(), rng.random())
        lines.append(f"SPHERE CENTER {x:.3f} {y:.3f} {z:.3f} RAD {size:.3f}")
        lines.append(texture.format(rng.choice(("1.0", "1.0", "0.5")), *colour))
    lines += ["PLANE CENTER 0 -1 0 NORMAL 0 1 0", texture.format("1.0", 0.8, 0.8, 0.7), "END_SCENE"]
    path.write_text("\n".join(lines) + "\n")


def liquid(rng: random.Random, folder: Path, side: int) -> None:
    """GROMACS: argon, side^3 atoms on a jittered lattice."""
    gap, atoms = 0.38, side**3
    with (folder / "argon.gro").open("w") as file:
        file.write(f"argon\n{atoms}\n")
        for number in range(atoms):
            at = [
                (0.5 + place) * gap + rng.uniform(-0.02, 0.02)
                for place in (number % side, number // side % side, number // side**2)
            ]
            place = (number + 1) % 100000
            file.write(f"{place:5d}AR   {'AR':>5}{place:5d}{at[0]:8.3f}{at[1]:8.3f}{at[2]:8.3f}\n")
        file.write(f"{side * gap:10.5f}{side * gap:10.5f}{side * gap:10.5f}\n")
    (folder / "argon.top").write_text(
        "[ defaults ]\n1 1 no 1.0 1.0\n[ atomtypes ]\nAR 39.948 0.0 A 0.00622 9.69e-06\n"
        f"[ moleculetype ]\nAR 1\n[ atoms ]\n1 AR 1 AR AR 1 0.0 39.948\n[ system ]\nargon\n[ molecules ]\nAR {atoms}\n"
    )
    (folder / "argon.mdp").write_text(
        "integrator = md\ndt = 0.002\nnsteps = 100000\nnstlist = 10\ncutoff-scheme = Verlet\n"
        "rvdw = 0.9\nrcoulomb = 0.9\n"
        "gen-vel = yes\ngen-temp = 120\ngen-seed = 1\nnstenergy = 1000\nnstlog = 0\ntcoupl = no\n"
    )


def main() -> None:
    folder, seeded = folder_and_seeds(__doc__)

    picture(seeded("picture.ppm"), folder / "picture.ppm", 1600, 1100)
    sound(seeded("sound.wav"), folder / "sound.wav", 60)
    genome_and_reads(seeded("reads.fq"), folder, 2_000_000, 130_000)
    scene(seeded("balls.dat"), folder / "balls.dat")
    liquid(seeded("argon.gro"), folder, 12)


if __name__ == "__main__":
    main()
