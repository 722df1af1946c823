# SPDX-License-Identifier: Apache-2.0
"""Plans from the store: every type of nodes and number of cores that a kernel can be predicted for, and the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from checkpoint.errors import NoPrediction, NotInStore, Unpredictable
from probe.applications.application import SHARED, Application
from probe.applications.composition import FARM, Composed
from probe.applications.inputs import configuration
from probe.scaling.asking import Question, joules, model_for, power_of
from probe.scaling.energy import Joules
from probe.scaling.judging import doubts_of_types
from probe.scaling.model import Predicted
from probe.scaling.plan import TIME, Choice, Planned, plan
from probe.store.opening import Store
from probe.store.runs import stored_runs

_DRAWS = 200
"""For the interval of each of many choices."""


@dataclass(frozen=True)
class ScalingPlan:
    """Plans, choices that are left out with the reason, and doubts."""

    planned: Planned
    refused: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_json(self, front: bool) -> dict[str, Any]:
        """As docs/json.md says of `probe plan`."""
        return {
            "plans": self.planned.plans,
            "best": self.planned.best.to_json(),
            "front": [one.to_json() for one in self.planned.front] if front else [],
            "refused": list(self.refused),
            "warnings": list(self.warnings),
        }


def propose(
    store: Store,
    application: Application,
    cores: Sequence[int],
    settings: Mapping[str, float],
    *,
    objective: str = TIME,
    types: Sequence[str] = (),
    waits: Mapping[str, float] | None = None,
    like: str | None = None,
) -> ScalingPlan:
    """Plan the application on `cores` and on the types that have runs (or `types`). waits: seconds by type.

    like: type whose curves are joined with probes for types without. Raises ProbeError where there is no plan.
    """
    known = stored_runs(store, app=application.name)
    wanted = list(types) or sorted({run.node_type for run in known})
    farmed = set(_farmed(application.graph))
    choices: dict[str, list[Choice]] = {}
    values: dict[str, float] = dict(settings)
    refused: list[str] = []
    warnings = [f"{name}: {doubt}" for name in application.kernels for doubt in doubts_of_types(
        [run for run in known if run.kernel == name])]  # fmt: skip
    for kernel in application.kernels.values():
        own = {name: value for name, value in settings.items() if name in kernel.parameters}
        found = configuration(application, kernel, own)
        values = {**found.parameters, **values}
        choices[kernel.name] = []
        for node_type in wanted:
            base = (
                like if like and not any(r.node_type == node_type and r.kernel == kernel.name for r in known) else None
            )
            try:
                model = model_for(store, application, kernel, Question(node_type, {}, base))
            except (Unpredictable, NoPrediction, NotInStore) as error:
                refused.append(str(error))
                continue
            power, wait = power_of(store, node_type), (waits or {}).get(node_type, 0.0)
            for number in cores:
                try:
                    predicted = model.predict(number, found.work, draws=_DRAWS)
                except Unpredictable as error:
                    refused.append(str(error))
                    continue
                warnings += [f"{kernel.name}: {warning}" for warning in predicted.warnings]
                energy = joules(model, power, number, predicted.seconds)
                choices[kernel.name].append(_choice(kernel.name, node_type, predicted, energy, wait))
        if kernel.name in farmed:
            choices[kernel.name] = _with_places(choices[kernel.name], cores)
    unknown = [name for name, found in choices.items() if not found]
    if unknown and refused:
        reasons = "; ".join(dict.fromkeys(refused))
        raise Unpredictable(f"{unknown[0]}: there is no type and number of cores that can be predicted: {reasons}")
    planned = plan(application.graph, choices, values, objective=objective, shared=application.nodes == SHARED)
    return ScalingPlan(planned, tuple(refused), tuple(dict.fromkeys(warnings)))


def _choice(kernel: str, node_type: str, found: Predicted, energy: Joules | None, wait: float) -> Choice:
    share, source = (energy.share, energy.source) if energy else (None, "")
    times = (found.seconds, found.low, found.high)
    return Choice(kernel, node_type, found.cores, *times, joules=share, energy_source=source, wait=wait)


def _farmed(graph: Composed) -> list[str]:
    """Kernels that a pilot job farms."""
    own = [part.name for part in graph.parts if not part.kind] if graph.kind == FARM else []
    return [*own, *(name for part in graph.parts for name in _farmed(part))]


def _with_places(choices: Sequence[Choice], cores: Sequence[int]) -> list[Choice]:
    """Every pilot job of at most so many cores: as many copies at once as fit into it."""
    return [
        replace(choice, places=places)
        for choice in choices
        for places in sorted({number // choice.cores for number in cores} - {0})
    ]
