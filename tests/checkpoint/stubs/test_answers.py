# SPDX-License-Identifier: Apache-2.0
"""Answers that a program gets are the same in every run: random numbers, by whatever function, and free memory."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tracing import SECONDS, compile_small, program_of, streams_of

from checkpoint.binary.elf import read_image
from checkpoint.binary.sites import find_sites
from checkpoint.process.loader import LoadWatch
from checkpoint.process.tracee import Tracee, What
from checkpoint.stubs.answers import Answers, not_answering, repeat_answers
from checkpoint.stubs.counters import SiteCounters

# Prints what each function gives, then what it says of wrong arguments, and what calls through syscall() return.
DRAWS = r"""
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void show(const char *name, const unsigned char *at, size_t size)
{
    printf("%s", name);
    for (size_t i = 0; i < size; i++)
        printf(" %02x", at[i]);
    printf("\n");
}

int main(int argc, char **argv)
{
    static unsigned char some[1 << 17];
    static char out[1 << 16]; /* malloc would draw, too */
    setvbuf(stdout, out, _IOFBF, sizeof out);
    size_t before = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
    for (; before; before--)
        if (getrandom(some, 4096, 0) != 4096)
            return 1;
    memset(some, 0, sizeof some);
    show("AT_RANDOM", (unsigned char *)getauxval(AT_RANDOM), 16);
    for (size_t size = 0; size < 20; size += 9) {
        memset(some, 0x55, sizeof some);
        if (getrandom(some, size, 0) != (ssize_t)size)
            return 2;
        show("getrandom", some, size);
        if (some[size] != 0x55)
            return 3;
    }
    if (getentropy(some, 256))
        return 4;
    show("getentropy", some, 256);
    if (syscall(SYS_getrandom, some, 8, GRND_NONBLOCK) != 8)
        return 5;
    show("syscall", some, 8);
    printf("arc4random %u\n", arc4random());
    arc4random_buf(some, 33);
    show("arc4random_buf", some, 33);
    printf("arc4random_uniform %u\n", arc4random_uniform(1000000));
    errno = 0;
    if (getentropy(some, 257) != -1 || errno != EIO)
        return 6;
    if (syscall(SYS_close, -1) != -1 || errno != EBADF)
        return 7;
    char *pages = (char *)syscall(SYS_mmap, NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
    if (pages == MAP_FAILED)
        return 8;
    pages[8191] = 1;
    if (syscall(SYS_getpid) != getpid())
        return 9;
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        if (getrandom(some, 8, 0) != 8)
            _exit(1);
        show("child", some, 8);
        fflush(stdout);
        _exit(0);
    }
    int status = 1;
    if (waitpid(child, &status, 0) != child || status)
        return 10;
    if (getrandom(some, 32769, 0) != 32769)
        return 11;
    show("much", some, 8);
    return 0;
}
"""

FREE = r"""
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>
int main(void)
{
    struct sysinfo told, again;
    memset(&told, 0x55, sizeof told);
    memset(&again, 0x55, sizeof again);
    if (sysinfo(&told) || syscall(SYS_sysinfo, &again) || memcmp(&told, &again, sizeof told))
        return 1;
    if (sysinfo((struct sysinfo *)1) != -1 || errno != EFAULT)
        return 2;
    printf("memory %lu %lu %lu %lu\n", told.totalram, told.freeram, told.sharedram, told.bufferram);
    printf("swap %lu %lu\n", told.totalswap, told.freeswap);
    printf("processes %u\n", told.procs);
    printf("loads %lu %lu %lu\n", told.loads[0], told.loads[1], told.loads[2]);
    printf("unit %u\n", told.mem_unit);
}
"""

DEVICE = r"""
#include <cstdio>
#include <random>
int main()
{
    std::random_device device;
    std::mt19937 generator(device());
    unsigned sum = 0;
    for (int i = 0; i < 100; i++)
        sum += device() ^ generator();
    std::printf("%u\n", sum);
}
"""

SEED = "of this test"
NUMBERS = hashlib.shake_256(SEED.encode()).digest((256 << 10) + 16)

_ALL = 64
"""So many pages are all the numbers that repeat."""


@pytest.fixture(scope="module")
def draws(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_small(tmp_path_factory.mktemp("draws"), "draws", DRAWS)


def run(path: Path, *arguments: str, repeat: bool = True, counters: bool = False) -> tuple[dict[str, list[str]], int]:
    """What the program printed, by the function that gave it, and how many bytes of ours it drew."""
    program = replace(program_of(path, *arguments), seed=SEED)
    with streams_of() as streams, Tracee.start(program, streams) as tracee:
        answers = repeat_answers(tracee) if repeat else Answers(tracee)
        if counters:
            sites = SiteCounters(tracee)
            assert [sites.install(one) > 0 for one in LoadWatch(tracee).new_images()] == [True, True]
        while True:
            tracee.resume()
            occurrence = tracee.wait(SECONDS)
            if occurrence.what is What.EXITING:
                answers.read()
            if occurrence.what is What.ENDED:
                break
            assert occurrence.what is not What.TIMEOUT, "it hangs"
        assert occurrence.status == 0, occurrence
        said: dict[str, list[str]] = {}
        for line in streams.stdout.read_text().splitlines():
            name, _, value = line.partition(" ")
            said.setdefault(name, []).append(value)
        return said, answers.drawn


def differing(one: dict[str, list[str]], other: dict[str, list[str]]) -> set[str]:
    assert one.keys() == other.keys()
    return {name for name in one if one[name] != other[name]}


def test_all_but_the_kernels_own_repeat(draws: Path) -> None:
    first, drawn = run(draws)
    second, again = run(draws)
    assert differing(first, second) == {"child", "much"}
    assert drawn == again > 300
    numbers = [value for values in first.values() for value in values if value]
    assert len(set(numbers)) == len(numbers)
    assert bytes.fromhex(first["AT_RANDOM"][0]) == NUMBERS[-16:]


def test_without_it_none_repeat(draws: Path) -> None:
    (first, drawn), (second, _) = run(draws, repeat=False), run(draws, repeat=False)
    assert differing(first, second) == first.keys()
    assert not drawn


def test_numbers_are_those_of_the_seed(draws: Path) -> None:
    said, _ = run(draws)
    assert bytes.fromhex(said["getrandom"][1] + said["getrandom"][2]) == NUMBERS[:27]


def test_every_build_has_a_seed_of_its_own(draws: Path) -> None:
    seeds = {program_of(draws).seed for _ in range(2)}
    assert len(seeds) == 2 and all(len(seed) == 64 for seed in seeds)
    assert all(seed not in json.dumps(replace(program_of(draws), seed=seed).to_json()) for seed in seeds)


def test_where_much_is_drawn_the_kernel_is_asked(draws: Path) -> None:
    (first, drawn), (second, _) = run(draws, str(_ALL)), run(draws, str(_ALL))
    assert drawn == _ALL * 4096
    assert differing(first, second) == first.keys() - {"AT_RANDOM"}
    near, drawn = run(draws, str(_ALL - 1))
    assert (_ALL - 1) * 4096 < drawn < _ALL * 4096
    assert not differing(near, run(draws, str(_ALL - 1))[0]) - {"child", "much"}


def test_the_processors_numbers_repeat_beside_counters(tmp_path: Path) -> None:
    """libstdc++ is counted: a counter within the function that became a jump would be no instruction."""
    (tmp_path / "device.cc").write_text(DEVICE)
    device = tmp_path / "device"
    subprocess.run(["c++", "-O2", "-o", device, tmp_path / "device.cc"], check=True)
    (first, drawn), (second, _) = run(device), run(device)
    assert first == second
    assert drawn == 101 * 4
    plain = {subprocess.run([device], check=True, capture_output=True).stdout for _ in range(2)}
    assert len(plain) == 2
    assert run(device, counters=True) == (first, drawn)


def test_no_site_lies_in_what_became_a_jump() -> None:
    path = next(Path("/usr/lib/x86_64-linux-gnu").glob("libstdc++.so.6"))
    image = read_image(str(path))
    sites = find_sites(image)
    said = subprocess.run(["nm", "-DS", path], check=True, capture_output=True, text=True).stdout
    device = next(line for line in said.splitlines() if "_ZNSt13random_device9_M_getvalEv" in line)
    start, size = (int(word, 16) for word in device.split()[:2])
    inside = (start <= sites.offset) & (sites.offset < start + size)
    assert inside.any()
    assert (not_answering(image, sites.offset) == ~inside).all()


def test_what_is_free_is_the_same_everywhere(tmp_path: Path) -> None:
    path = compile_small(tmp_path, "free", FREE)
    told, _ = run(path)
    (total,) = (int(line.split()[1]) << 10 for line in Path("/proc/meminfo").read_text().splitlines() if "MemT" in line)
    assert told["memory"] == [f"{total} {total - total // 4} 0 0"]
    swap = told["swap"][0].split()
    assert swap[0] == swap[1]
    assert (told["processes"], told["loads"], told["unit"]) == (["100"], ["0 0 0"], ["1"])
    natural, _ = run(path, repeat=False)
    assert natural["memory"] != told["memory"]
    # By both: this machine may have just 100 processes, too.
    assert (natural["processes"], natural["loads"]) != (told["processes"], told["loads"])


def test_no_library_no_harm(tmp_path: Path) -> None:
    static = compile_small(tmp_path, "static", "int main(void) { return 0; }\n", "-static", "-fno-pie", "-no-pie")
    assert run(static) == ({}, 0)
