# SPDX-License-Identifier: Apache-2.0
"""Ask how an application scales, by its description and the store: what `probe scale` and `probe plan` answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from probe.applications.application import read_application
from probe.applications.network import read_bandwidths
from probe.scaling.asking import Question, ScalingFit, ScalingPrediction, fit_application, predict_application
from probe.scaling.model import CHOSEN
from probe.scaling.plan import TIME
from probe.scaling.planning import ScalingPlan, propose
from probe.store.opening import open_store


def fit_scaling(
    application: Path | str,
    *,
    kernels: Sequence[str] = (),
    node_type: str | None = None,
    forms: str = CHOSEN,
    store: str | None = None,
) -> ScalingFit:
    """Curves through the stored runs of each kernel and type of nodes.

    application: its description in TOML. store: URL, None for that of PROBE_STORE. Raises Unpredictable where not one
    can be fitted, NotInStore, StoreUnusable, ProbeError.
    """
    described = read_application(Path(application))
    with open_store(store, create=False) as opened:
        return fit_application(opened, described, kernels=kernels, node_type=node_type, forms=forms)


def predict_scaling(
    application: Path | str,
    node_type: str,
    cores: Iterable[int],
    *,
    settings: Mapping[str, float] | None = None,
    kernels: Sequence[str] = (),
    like: str | None = None,
    mpi_seconds: float | None = None,
    network: Path | str | None = None,
    forms: str = CHOSEN,
    store: str | None = None,
) -> list[ScalingPrediction]:
    """Run time and energy on each number of cores, ascending. settings: parameters in place of what the inputs say.

    like: type whose curves are joined with probes. network: file of its bandwidth by the size of messages, whose steps
    the MPI curve is then free of. Raises Unpredictable for sizes too far from those measured,
    NotInStore, NoPrediction, StoreUnusable, ProbeError.
    """
    described = read_application(Path(application))
    bandwidths = None if network is None else read_bandwidths(Path(network))
    asked = Question(node_type, dict(settings or {}), like, mpi_seconds, forms, tuple(kernels), bandwidths)
    with open_store(store, create=False) as opened:
        return predict_application(opened, described, asked, cores)


def plan_scaling(
    application: Path | str,
    cores: Sequence[int],
    *,
    objective: str = TIME,
    node_types: Sequence[str] = (),
    settings: Mapping[str, float] | None = None,
    like: str | None = None,
    waits: Mapping[str, float] | None = None,
    store: str | None = None,
) -> ScalingPlan:
    """The best type of nodes and number of cores for each kernel, and the plans that no other one beats.

    waits: seconds in the queue by type. Raises ProbeError where there is no plan, NotInStore, StoreUnusable.
    """
    described, known = read_application(Path(application)), dict(settings or {})
    with open_store(store, create=False) as opened:
        return propose(opened, described, cores, known, objective=objective, types=node_types, waits=waits, like=like)
