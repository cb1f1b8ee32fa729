"""From a request to a job: spec and units, with everything checked before anything is computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from orderlens.decode.generate import GenerationSettings
from orderlens.decode.places import check_fits
from orderlens.errors import UserInputError
from orderlens.models.protocol import Model
from orderlens.rules import Policy, parse_policies
from orderlens.rules.catalogue import PolicyLike
from orderlens.runs.compute import canvases, longest_canvas
from orderlens.runs.options import Computing, ModelLike
from orderlens.runs.spec import RunSpec, describe_data, describe_model
from orderlens.runs.units import Unit, cut_units, even_size, shared_size, unit_samples
from orderlens.texts.inputs import whole_number
from orderlens.texts.samples import EncodedSample, Sample, encode_samples, in_chat

Orders: TypeAlias = PolicyLike | Iterable[PolicyLike]


@dataclass(frozen=True, slots=True)
class Job:
    """A run to be computed.

    Attributes:
        spec: what determines its rows.
        units: what it is cut into.
        model: the loaded model.
        orders: the policies as objects, in the order of ``spec.orders``.
        free_size: whether the number of samples per unit was left to us; a run that is there keeps its own.
    """

    spec: RunSpec
    units: Sequence[Unit]
    model: Model
    orders: Sequence[Policy]
    free_size: bool = False

    def recut(self, size: int) -> Job:
        """Return the job with units of so many samples."""
        if size == self.spec.batch_size:
            return self
        units: list[Unit] = []
        for value in self._temperatures():
            mine = [unit for unit in self.units if unit.temperature == value]
            samples = [sample for unit in mine for sample in unit.samples]
            extras = [extra for unit in mine for extra in unit.extras]
            units += cut_units(samples, size, value, extras=extras)
        return replace(self, spec=replace(self.spec, batch_size=size), units=units)

    def shared_by(self, workers: int) -> Job:
        """Return the job cut so that each of so many workers has work, if the unit size was left to us."""
        if not self.free_size:
            return self
        groups = max(len(self._temperatures()), 1)
        count = sum(len(unit.samples) for unit in self.units) // groups
        return self.recut(shared_size(self.spec.batch_size, count, groups, workers))

    def _temperatures(self) -> list[float | None]:
        return list(dict.fromkeys(unit.temperature for unit in self.units))

    @property
    def longest(self) -> int:
        """Positions of the longest canvas."""
        return longest_canvas((self.spec, unit) for unit in self.units)


def score_job(
    model: ModelLike,
    samples: Iterable[Sample],
    orders: Orders,
    options: Computing,
    *,
    circulation: int = 0,
    couplings: int = 0,
    noise_floor: bool = False,
    chat: bool = False,
) -> Job:
    """Return the job of scoring fixed targets."""
    chosen = parse_policies(orders)
    for policy in chosen:
        policy.refuse_to_score()
    whole_number("circulation", circulation, least=0)
    whole_number("couplings", couplings, least=0)
    loaded = options.load(model)
    encoded = encode_samples(loaded, in_chat(loaded, samples) if chat else samples, need_target=True)
    return make_job(
        "score",
        loaded,
        chosen,
        encoded,
        options,
        circulation_pairs=circulation or None,
        coupling_sets=couplings or None,
        noise_floor=noise_floor or None,
        chat=chat or None,
    )


def generate_job(
    model: ModelLike,
    prompts: Iterable[Sample],
    orders: Orders,
    options: Computing,
    *,
    max_new_tokens: int,
    temperatures: Sequence[float],
    seed: int,
    stop_at_eos: bool,
    chat: bool = False,
) -> Job:
    """Return the job of decoding prompts at one or several temperatures."""
    chosen = deployable(orders)
    check_generation(max_new_tokens, temperatures, seed)
    loaded = options.load(model)
    encoded = encode_samples(loaded, in_chat(loaded, prompts) if chat else prompts, need_target=False)
    return make_job(
        "generate",
        loaded,
        chosen,
        encoded,
        options,
        max_new_tokens=max_new_tokens,
        temperatures=tuple(temperatures),
        seed=seed,
        stop_at_eos=stop_at_eos,
        chat=chat or None,
    )


def make_job(
    kind: str,
    model: Model,
    orders: Sequence[Policy],
    samples: Sequence[EncodedSample],
    options: Computing,
    *,
    extras: Sequence[Mapping[str, Any]] = (),
    **more: Any,
) -> Job:
    """Return the job of one verb.

    Args:
        kind: what is computed (``RunSpec.kind``).
        model: the loaded model.
        orders: the policies.
        samples: the encoded samples, decoded once per temperature.
        options: how to lay out and cut the work.
        extras: what travels with each sample.
        more: further fields of the spec.

    Raises:
        UserInputError: a sample is longer than the model's context.
    """
    length = more.get("max_new_tokens") or max((len(sample.target) for sample in samples), default=1)
    on_cpu = options.stays_on_cpu(model)
    size = unit_samples(model, len(orders), options.batch_size, length, on_cpu=on_cpu)
    if options.batch_size is None and not on_cpu:
        size = even_size(size, len(samples))
    spec = RunSpec(
        kind,
        describe_model(model),
        model.block_size,
        tuple(order.spec for order in orders),
        describe_data(samples, options.data_record),
        anchor=options.anchor_of(model),
        batch_size=size,
        likelihood=likelihoods(orders),
        **more,
    )
    temperatures = spec.temperatures or (None,)
    units = [unit for value in temperatures for unit in cut_units(samples, size, value, extras=extras)]
    for unit in units:
        check_fits(model, unit.samples, canvases(spec, unit))
    return Job(spec, units, model, orders, options.batch_size is None)


def deployable(orders: Orders) -> list[Policy]:
    """Return the policies; one that needs a target is refused, since generation has none."""
    chosen = parse_policies(orders)
    for policy in chosen:
        policy.refuse_to_generate()
    return chosen


def likelihoods(policies: Sequence[Policy]) -> dict[str, str]:
    """Return, by label, what a trace's summed log q is; ``LABEL|drawn`` where that differs at T > 0."""
    found: dict[str, str] = {}
    for policy in policies:
        found[policy.label] = policy.likelihood()
        if policy.likelihood(1.0) != policy.likelihood():
            found[f"{policy.label}|drawn"] = policy.likelihood(1.0)
    return found


def check_generation(max_new_tokens: int, temperatures: Sequence[float], seed: int) -> None:
    """Refuse bad numbers before a model is loaded."""
    whole_number("seed", seed)
    whole_number("max_new_tokens", max_new_tokens)
    if not temperatures or len(set(temperatures)) < len(temperatures):
        raise UserInputError(f"temperatures {list(temperatures)} must be non-empty and distinct")
    for value in temperatures:
        GenerationSettings(max_new_tokens, value)
