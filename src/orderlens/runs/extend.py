"""Adding orders or samples to a run that is there: which units are new, and what may not differ.

A run is a grid of samples × orders (× temperatures). An extension adds rows, columns or both: the old samples
under the new orders, and the new samples under all orders. Every unit of the run, old or new, keeps the key
and the orders it was first cut with, so that nothing is computed twice. Knows no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from orderlens.errors import RunError
from orderlens.rules import parse_policies
from orderlens.runs.job import Job, likelihoods
from orderlens.runs.spec import RunSpec, samples_digest
from orderlens.runs.units import Unit, cut_units, order_groups
from orderlens.texts.samples import EncodedSample

SampleKey = tuple[str | None, str]
"""Task and id of a sample."""
EXTENSIBLE = ("score", "generate")
GROWING = ("orders", "data", "likelihood", "batch_size", "unit_orders")
"""Fields of a spec that an extension may change; units keep the size that the run was started with."""


@dataclass(frozen=True, slots=True)
class Addition:
    """What one extension added.

    Attributes:
        orders: specs of the new orders.
        samples: task and id of the new samples.
    """

    orders: tuple[str, ...]
    samples: frozenset[SampleKey]

    def to_json(self) -> dict[str, Any]:
        """Return the addition as the store keeps it."""
        return {"orders": list(self.orders), "samples": sorted(map(list, self.samples), key=str)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Addition:
        """Return what ``to_json`` wrote."""
        return cls(tuple(value["orders"]), frozenset((task, name) for task, name in value["samples"]))


@dataclass(frozen=True, slots=True)
class Stage:
    """A run as it was at one time: its spec, and what was added to come there (None: it was started so)."""

    spec: RunSpec
    addition: Addition | None = None


def grown(job: Job, run: RunSpec) -> Job:
    """Return the job with the orders of the run before its own, and the run's batch size.

    Raises:
        RunError: the job differs from the run in more than orders and samples.
    """
    if run.kind not in EXTENSIBLE or job.spec.kind != run.kind:
        raise RunError(
            f"a run of kind '{run.kind}' cannot be extended by '{job.spec.kind}'; "
            f"only {' and '.join(EXTENSIBLE)} can, each by itself"
        )
    old, new = (
        {name: value for name, value in spec.to_json().items() if name not in GROWING}
        for spec in (run, job.spec)
    )
    if differing := sorted(name for name in {*old, *new} if old.get(name) != new.get(name)):
        name = differing[0]
        raise RunError(
            f"only orders and samples can be added to a run; {name} is {old.get(name)} in it, "
            f"asked for {new.get(name)}"
        )
    own = {order.spec: order for order in job.orders}
    orders = parse_policies([own.get(name, name) for name in dict.fromkeys((*run.orders, *own))])
    spec = replace(
        job.spec,
        orders=tuple(order.spec for order in orders),
        batch_size=run.batch_size,
        unit_orders=run.unit_orders,
        likelihood=likelihoods(orders),
    )
    return replace(job, spec=spec, orders=orders)


def addition_to(job: Job, run: RunSpec, known: AbstractSet[SampleKey]) -> Addition:
    """Return what ``job`` (grown) adds to a complete run that holds the samples ``known``.

    Raises:
        RunError: the samples of the run are not all there, unchanged and in their order.
    """
    samples = job.samples
    _check_samples([sample for sample in samples if _key(sample) in known], run)
    orders = tuple(name for name in job.spec.orders if name not in run.orders)
    return Addition(orders, frozenset(_key(sample) for sample in samples) - known)


def staged_units(job: Job, stages: Sequence[Stage]) -> dict[str, tuple[RunSpec, Unit]]:
    """Return all units of a run by key, each with the spec it is computed under.

    Args:
        job: the run as it is at its last stage.
        stages: how it came there, first the run as it was started.

    Raises:
        RunError: the samples of some stage are not those of the job.
    """
    found: dict[str, tuple[RunSpec, Unit]] = {}
    everything, later = job.samples, frozenset[SampleKey]()
    for stage in reversed(stages):
        here = [sample for sample in everything if _key(sample) not in later]
        _check_samples(here, stage.spec)
        units = _units(job, stage, here)
        found = {unit.key(): (stage.spec, unit) for unit in units} | found
        later |= stage.addition.samples if stage.addition is not None else frozenset()
    return found


def _units(job: Job, stage: Stage, here: Sequence[EncodedSample]) -> list[Unit]:
    """Return the units that a stage brought; ``here`` are the samples of the run at that time."""
    spec, addition = stage.spec, stage.addition
    if addition is None:
        return replace(job, spec=spec, samples=here).units
    old = [sample for sample in here if _key(sample) not in addition.samples]
    new = [sample for sample in here if _key(sample) in addition.samples]
    units: list[Unit] = []
    for value in spec.temperatures or (None,):
        for samples, orders in ((old, addition.orders), (new, spec.orders)):
            for group in order_groups(orders, spec.unit_orders) if orders else ():
                units += cut_units(samples, spec.batch_size, value, group or orders)
    return units


def _check_samples(samples: Sequence[EncodedSample], run: RunSpec) -> None:
    if samples_digest(samples) != run.data.get("digest"):
        raise RunError(
            f"to extend a run give all its {run.data.get('n_samples')} samples again, unchanged and in their "
            f"order, beside the new ones; {len(samples)} of those given are in it, or some have changed"
        )


def _key(sample: EncodedSample) -> SampleKey:
    return sample.task, sample.id
