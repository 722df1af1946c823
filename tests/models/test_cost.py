# SPDX-License-Identifier: Apache-2.0
"""Prices by the roofline, against sums done by hand, and formulas against prices."""

from __future__ import annotations

from pathlib import Path

import pytest
from aspen_models import MACHINE, flow_in, written

from checkpoint.errors import ModelInvalid
from probe.models.cost import Cost, energy, price
from probe.models.expressions import Settings
from probe.models.formula import total
from probe.models.machine import Machine, read_machine
from probe.models.reader import read_model

GIGA = 1e9
CORE, CORES, CLOCK, MEMORY = 1.0, 8, 1.5 * GIGA, 16 * GIGA


def machine(socket: str = "") -> Machine:
    return read_machine(read_model(MACHINE), Settings({}), socket)


def cost(folder: Path, body: str, socket: str = "", ranks: int = 1, **probes: float) -> Cost:
    return price(flow_in(folder, body), machine(socket), ranks=ranks, probes=probes)


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        ("execute { flops [3e9] }", 2.0),
        ("execute { flops [3e9] as simd }", 0.5),
        ("execute { flops [3e9] as simd, dp }", 1.0),
        ("execute { flops [3e9] as unheard_of }", 2.0),
        ("execute [4] { flops [3e9] }", 2.0),
        ("execute [16] { flops [3e9] }", 4.0),
        ("map [16] { execute { flops [3e9] } }", 4.0),
        ("map [4] { execute [4] { flops [3e9] } }", 4.0),
        ("execute { flops [3e9] loads [16e9] }", 2.0),
        ("execute { flops [3e9] loads [48e9] }", 3.0),
        ("execute { flops [3e9] loads [16e9] stores [32e9] }", 3.0),
        ("execute { loads [2e9] of size [8] }", 1.0),
        ("execute { flops [3e9] } execute { loads [16e9] }", 3.0),
        ("par { execute { flops [3e9] } execute { loads [16e9] } }", 2.0),
        ("iterate [10] { execute { flops [3e9] } }", 20.0),
        ("iterate [0] { execute { flops [3e9] } }", 0.0),
        ("probability [0.25] { execute { flops [3e9] } } else { execute { loads [16e9] } }", 1.25),
        ("param n = 2 if (n == 2) { execute { flops [3e9] } } else { execute { flops [6e9] } }", 2.0),
        ("switch (5) { case [4] { execute { flops [3e9] } } case [5] { execute { flops [6e9] } } }", 4.0),
        ("switch (6) { case [4] { execute { flops [3e9] } } default { execute { flops [9e9] } } }", 6.0),
        ("sample x from uniform(1, 3) execute { flops [x * 1.5e9] }", 2.0),
        ("execute { probe [3] as solver flops [3e9] }", 2.0 + 3 * 0.5),
    ],
)
def test_a_price_done_by_hand(body: str, seconds: float, tmp_path: Path) -> None:
    assert cost(tmp_path, body, solver=0.5).seconds == pytest.approx(seconds)


def test_another_socket_has_other_prices(tmp_path: Path) -> None:
    """64 lanes take 64 instances at once where 8 cores take eight turns."""
    assert cost(tmp_path, "execute [64] { flops [3e9] }").seconds == pytest.approx(16.0)
    assert cost(tmp_path, "execute [64] { flops [3e9] }", "card").seconds == pytest.approx(2.0)


def test_communication_is_added_and_may_hide(tmp_path: Path) -> None:
    body = "execute { flops [3e9] comm [1000] of size [8] as allreduce, sum }"
    alone = 3 * (2e-6 + 8000 / GIGA)
    found = cost(tmp_path, body, ranks=8)
    assert found.seconds == pytest.approx(2.0 + alone) and found.communication == pytest.approx(alone)
    assert cost(tmp_path, body, ranks=1).communication == 0
    text = MACHINE.read_text().replace("overlap [0]", "overlap [1]")
    hiding = read_machine(read_model(written(tmp_path, text)), Settings({}))
    assert price(flow_in(tmp_path, body), hiding, ranks=8).seconds == pytest.approx(2.0)


def test_neighbours_cost_a_message_each(tmp_path: Path) -> None:
    face, edge, corner = 100 * 8, 10 * 8, 8
    both = cost(tmp_path, "execute { comm [10] of size [8] as nn3d }", ranks=64)
    expected = 26 * 2e-6 + (6 * face + 12 * edge + 8 * corner) / GIGA
    assert both.seconds == pytest.approx(expected)
    assert both.amounts == {"comm": 6 * face + 12 * edge + 8 * corner}
    up = cost(tmp_path, "execute { comm [10] of size [8] as nn3d, up }", ranks=64)
    assert up.seconds == pytest.approx(expected / 2)


def test_kernels_and_energy(tmp_path: Path) -> None:
    body = "kernel solve { execute { flops [3e9] } } kernel main { iterate [2] { call solve() } call solve() }"
    found = price(flow_in(tmp_path, body), machine())
    assert found.kernels == {"solve": pytest.approx(6.0), "main": pytest.approx(6.0)}
    # Two sockets of 20 W and one of 50 W all the time, a core's 3 W while it computes.
    assert energy(found, machine()) == pytest.approx(6.0 * (2 * 20 + 50) + 3 * 6.0)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("execute { warps [1] }", "has no resource warps for socket cpu: it has flops, loads, messages, stores"),
        ("execute { flops [0 - 1] }", "an amount is 0 or more"),
        ("iterate [1.5] { }", "a count is a whole number"),
        ("iterate [-1] { }", "a count is a whole number"),
        ("call absent()", "there is no kernel absent"),
        ("call main()", "main calls main: recursion has no price"),
        ("kernel f(n) { } kernel main { call f() }", "f takes 1 arguments, not 0"),
        ("probability [2] { }", "a probability of 2"),
        ("sample x from cauchy(1)", "sample from uniform(low, high)"),
        ("execute { probe [1] as absent }", "no seconds for the probe absent"),
        ("execute { comm [1] }", "communication is one of"),
        ("execute { comm [1] as allreduce, face }", "'face' means nothing here"),
        ("execute { comm [1] as offset(0, 0, 0) }", "names another rank"),
        ("execute { flops [1 / 0] }", "1 is divided by zero"),
    ],
)
def test_what_has_no_price_is_refused_with_its_line(body: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid) as refused:
        cost(tmp_path, body)
    assert words in str(refused.value) and "written.aspen:1: " in str(refused.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("socket [2] cpu", "socket [2] gone"), "socket gone is not defined"),
        (("memory ram  static", "core ram  static"), "ram is a memory, not a core"),
        (("core [8] little", "core [0.5] little"), "a count is a whole number"),
        (("memory ram  static", "memory ram  memory hbm  static"), "is also a resource of ram"),
        (("overlap [0]", "overlap [2]"), "overlap is 2, not 0 to 1"),
        (("machine rig", "socket rig"), "a machine model has one machine; found: none"),
        (("core [8] little  memory", "socket [1] cpu  memory"), "contains itself"),
    ],
)
def test_contradictory_machines(change: tuple[str, str], words: str, tmp_path: Path) -> None:
    assert change[0] in MACHINE.read_text()
    path = written(tmp_path, MACHINE.read_text().replace(*change))
    with pytest.raises(ModelInvalid) as refused:
        read_machine(read_model(path), Settings({}))
    assert words in str(refused.value)


def test_a_socket_that_is_not_there() -> None:
    with pytest.raises(ModelInvalid, match="has no socket gpu: it has cpu, card"):
        machine("gpu")


FORMULA = """
model m {
  param n = 4
  param edge = n + 1
  kernel work(k) { execute [2] { flops [k * n^2] } }
  kernel main {
    iterate [n] { call work(edge) }
    if (n > 10) { execute { flops [7] } }
    probability [0.5] { execute { flops [8] } }
    par { execute { flops [1] } map [3] { execute { flops [2] } } }
    switch (n) { case [4] { execute { flops [100] } } default { execute { flops [50] } } }
  }
}
"""


def test_a_formula_equals_the_prices(tmp_path: Path) -> None:
    source = read_model(written(tmp_path, FORMULA))
    found = total(source.applications["m"], source.parameters, "flops", {}, ["n"])
    (symbol,) = found.free_symbols
    for n in (1, 4, 5, 10, 11, 50):
        by_price = price(
            flow_in(tmp_path, FORMULA.partition("{")[2].rpartition("}")[0], n=float(n)), machine()
        ).amounts["flops"]
        assert float(found.subs(symbol, n)) == pytest.approx(by_price), n


@pytest.mark.parametrize(
    "traits", ["nn3d", "nn3d, face", "nn3d, edge, corner, up", "allreduce, min", "offset(1, 0, 0), offset(-1, 0, 0)"]
)
def test_a_formula_of_communication_equals_the_prices(traits: str, tmp_path: Path) -> None:
    """Both are the bytes that an inner rank sends."""
    body = f"param n = 4 kernel main {{ iterate [3] {{ execute {{ comm [n] of size [8] as {traits} }} }} }}"
    source = read_model(written(tmp_path, f"model made {{ {body} }}"))
    found = total(source.applications["made"], (), "comm", {}, ["n"])
    (symbol,) = found.free_symbols
    for n in (1, 7, 20):
        priced = price(flow_in(tmp_path, body, n=float(n)), machine(), ranks=64).amounts["comm"]
        assert float(found.subs(symbol, n)) == pytest.approx(priced)


def test_a_formula_is_simple(tmp_path: Path) -> None:
    source = read_model(written(tmp_path, "model m { param n = 2 kernel main { execute { flops [8 * n^3] } } }"))
    assert str(total(source.applications["m"], (), "flops", {}, ["n"])) == "8*n**3"
    for name, resource, words in (("k", "flops", "no parameter k"), ("n", "loads", "never uses the resource loads")):
        with pytest.raises(ModelInvalid, match=words):
            total(source.applications["m"], (), resource, {}, [name])
