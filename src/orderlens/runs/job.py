"""Turns a request into a job (spec and work units); all arguments are checked before computing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from orderlens.common.grid import Overflow
from orderlens.common.temperature import as_temperatures, plain_temperature
from orderlens.decode.generate import GenerationSettings
from orderlens.decode.target_states import check_fits
from orderlens.errors import UserInputError
from orderlens.models.protocol import Model
from orderlens.rules import Policy, parse_policies
from orderlens.rules.catalogue import PolicyLike
from orderlens.runs.compute import canvases, longest_canvas
from orderlens.runs.options import Computing, Decoding, ModelLike
from orderlens.runs.request import Opt, check
from orderlens.runs.spec import (
    RunSpec,
    Unit,
    cut_units,
    describe_data,
    describe_model,
    even_size,
    order_groups,
    shared_size,
    unit_shape,
)
from orderlens.texts.samples import EncodedSample, Sample, encode_samples, in_chat

Orders: TypeAlias = PolicyLike | Iterable[PolicyLike]


@dataclass(frozen=True, slots=True)
class Job:
    """A run to be computed.

    Attributes:
        spec: determines the rows of the run.
        samples: the encoded samples, decoded once per temperature.
        model: the loaded model.
        orders: the policies as objects, in the order of ``spec.orders``.
        extras: additional data per sample; may be empty.
        free_size: whether the unit size may be chosen here; a run that exists keeps its own.
    """

    spec: RunSpec
    samples: Sequence[EncodedSample]
    model: Model
    orders: Sequence[Policy]
    extras: Sequence[Mapping[str, Any]] = ()
    free_size: bool = False

    @property
    def units(self) -> list[Unit]:
        """The work units; all orders of a sample follow each other."""
        spec, units = self.spec, list[Unit]()
        groups = order_groups(spec.orders, spec.unit_orders)
        for value in spec.temperatures or (None,):
            cuts = [cut_units(self.samples, spec.batch_size, value, orders, self.extras) for orders in groups]
            units += [unit for batch in zip(*cuts, strict=True) for unit in batch]
        return units

    def recut(self, size: int, unit_orders: int | None) -> Job:
        """Return the job with units of another size, if the unit size is free."""
        if not self.free_size:
            return self
        return replace(self, spec=replace(self.spec, batch_size=size, unit_orders=unit_orders))

    def shared_by(self, workers: int) -> Job:
        """Return the job with units for several workers, if the unit size is free."""
        spec = self.spec
        groups = len(spec.temperatures or (None,)) * len(order_groups(spec.orders, spec.unit_orders))
        size = shared_size(spec.batch_size, len(self.samples), groups, workers)
        return self.recut(size, spec.unit_orders)

    @property
    def longest(self) -> int:
        """Length of the longest canvas in positions."""
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
    for name, count in {"circulation": circulation, "couplings": couplings}.items():
        check(name, int, Opt("", least=0), count)
    loaded = options.load(model)
    encoded = encode_samples(loaded, in_chat(loaded, samples) if chat else samples, need_target=True)
    return make_job(
        "score",
        loaded,
        chosen,
        encoded,
        options,
        circulation=circulation or None,
        couplings=couplings or None,
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
    temperatures: Sequence[float | str],
    seed: int,
    stop_at_eos: bool,
    overflow: Overflow = "fill",
    chat: bool = False,
) -> Job:
    """Return the job of decoding prompts at one or several temperatures."""
    chosen = deployable(orders)
    heats = check_generation(max_new_tokens, temperatures, seed)
    loaded = options.load(model)
    encoded = encode_samples(loaded, in_chat(loaded, prompts) if chat else prompts, need_target=False)
    return make_job(
        "generate",
        loaded,
        chosen,
        encoded,
        options,
        max_new_tokens=max_new_tokens,
        temperatures=tuple(heats),
        seed=seed,
        stop_at_eos=stop_at_eos,
        overflow=None if overflow == "fill" else overflow,
        chat=chat or None,
    )


def files_of(orders: Sequence[Policy]) -> dict[str, str] | None:
    """Return the digest of what the policies read from each file; None if they read none."""
    return {path: digest for order in orders for path, digest in order.files.items()} or None


def make_job(
    kind: str,
    model: Model,
    orders: Sequence[Policy],
    samples: Sequence[EncodedSample],
    options: Computing,
    *,
    extras: Sequence[Mapping[str, Any]] = (),
    unit_size: int | None = None,
    **more: Any,
) -> Job:
    """Return the job of one verb.

    Args:
        kind: kind of run (``RunSpec.kind``).
        model: the loaded model.
        orders: the policies.
        samples: the encoded samples, decoded once per temperature.
        options: device, block grid and unit size.
        extras: additional data per sample.
        unit_size: samples per work unit; None derives it from orders and lengths.
        more: further fields of the spec.

    Raises:
        UserInputError: a sample is longer than the model's context, or a search rule has equal paths or is to
            keep states.
    """
    if isinstance(options, Decoding):
        more["limit_states"] = options.stored_states
    for policy in orders:
        if more.get("limit_states") is not None:
            policy.refuse_to_keep_states()
        for heat in more.get("temperatures") or ():
            policy.refuse_equal_paths(heat)
    if unit_size is None or options.batch_size is not None:
        unit_size, unit_orders = _unit_shape(model, orders, samples, options, more)
    else:
        unit_orders = None
    spec = RunSpec(
        kind,
        describe_model(model),
        model.block_size,
        tuple(order.spec for order in orders),
        describe_data(samples, options.data_record),
        anchor=options.anchor_of(model),
        batch_size=unit_size,
        unit_orders=unit_orders,
        likelihood=likelihoods(orders),
        files=files_of(orders),
        **more,
    )
    job = Job(spec, samples, model, orders, extras, options.batch_size is None)
    for unit in job.units:
        check_fits(model, unit.samples, canvases(spec, unit))
    return job


def _unit_shape(
    model: Model,
    orders: Sequence[Policy],
    samples: Sequence[EncodedSample],
    options: Computing,
    settings: Mapping[str, Any],
) -> tuple[int, int | None]:
    """Return samples and orders per work unit: as requested, else by their time or memory."""
    if options.batch_size is not None:
        return options.batch_size, None
    new = settings.get("max_new_tokens")
    length = new or max((len(sample.target) for sample in samples), default=1)
    given = max((len(sample.prompt) + len(sample.suffix) for sample in samples), default=0)
    on_cpu, noise = options.stays_on_cpu(model), bool(settings.get("noise_floor"))
    n_paths = max(
        (policy.n_paths for policy in orders), default=1
    )  # units have the size that the longest search needs
    size, unit_orders = unit_shape(
        model, len(orders) * n_paths, length, given + length, on_cpu=on_cpu, compares_batches=noise
    )
    if unit_orders is not None:
        unit_orders = max(1, unit_orders // n_paths)
    return (size if on_cpu else even_size(size, len(samples))), unit_orders


def deployable(orders: Orders) -> list[Policy]:
    """Return the parsed policies; a policy that needs a target is refused."""
    chosen = parse_policies(orders)
    for policy in chosen:
        policy.refuse_to_generate()
    return chosen


def likelihoods(policies: Sequence[Policy]) -> dict[str, str]:
    """Return per label whether the sum of log q is a likelihood; ``LABEL|drawn`` if it differs at T > 0."""
    found: dict[str, str] = {}
    for policy in policies:
        found[policy.label] = policy.likelihood()
        if policy.likelihood(1.0) != policy.likelihood():
            found[f"{policy.label}|drawn"] = policy.likelihood(1.0)
    return found


def check_generation(
    max_new_tokens: int, temperatures: float | str | Sequence[float | str], seed: int
) -> list[float]:
    """Refuse bad numbers before a model is loaded; return the temperatures."""
    check("seed", int, Opt(""), seed)
    check("max_new_tokens", int, Opt(""), max_new_tokens)
    heats = as_temperatures(temperatures)
    for value in heats:
        GenerationSettings(max_new_tokens, value)
    if not heats or len(set(heats)) < len(heats):
        shown = [plain_temperature(value) for value in heats]
        raise UserInputError(
            f"temperatures {shown} must be non-empty and distinct; a schedule counts as the mean of its "
            "ends; use one run for each"
        )
    return heats
