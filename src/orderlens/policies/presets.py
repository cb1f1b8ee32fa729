"""Published samplers by name: each preset is a policy spec with its source and what we made of it.

A preset is written where an order stands and is a whole policy: ``fast-dllm`` is
``max-prob+threshold=0.9``. Traces always hold the spec, never the preset's name, so that two names of one
rule are one sampler. A preset whose order has a seed takes one: ``maskgit:3``.

The entries themselves stand in ``published`` (rules that only reveal); a rule that takes tokens back has its
preset beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from orderlens.errors import UserInputError
from orderlens.registry import Registry


@dataclass(frozen=True, slots=True)
class Preset:
    """A published sampler.

    Attributes:
        spec: the policy that it is here.
        source: paper, repository and file that define it.
        reading: the rule as we understand it, with the published defaults.
        differs: where we knowingly do something else, and why; empty where we do not.
    """

    spec: str
    source: str
    reading: str
    differs: str = ""

    @property
    def summary(self) -> str:
        """The line of the catalogue."""
        return f"{self.spec} ({self.source.partition(';')[0]})"

    def seeded(self, name: str, argument: str, draws: bool) -> str:
        """Return the spec with the seed that stood behind the preset's name, if any.

        Args:
            name: of the preset.
            argument: what stood behind it.
            draws: whether its order takes a seed.
        """
        if not argument:
            return self.spec
        if not draws or not argument.isascii() or not argument.isdigit():
            what = (
                f"only a seed may follow, e.g. {name}:3"
                if draws
                else f"'{name}' draws nothing and takes no seed"
            )
            raise UserInputError(
                f"preset '{name}:{argument}': {what}; write '{name}', or '{self.spec}' with other values"
            )
        order, plus, rules = self.spec.partition("+")
        return f"{order}:{argument}{plus}{rules}"


def _no_preset(value: object) -> str | None:
    return None if isinstance(value, Preset) else "it is no Preset"


PRESETS: Registry[Preset] = Registry(
    "preset",
    {
        "llada": "orderlens.policies.published:LLADA",
        "fast-dllm": "orderlens.policies.published:FAST_DLLM",
        "fast-dllm-factor": "orderlens.policies.published:FAST_DLLM_FACTOR",
        "eb-sampler": "orderlens.policies.published:EB_SAMPLER",
        "klass": "orderlens.policies.published:KLASS",
        "dus": "orderlens.policies.published:DUS",
        "llada2.0": "orderlens.policies.published:LLADA2_0",
        "sdar": "orderlens.policies.published:SDAR",
        "dinfer": "orderlens.policies.published:DINFER",
        "credit": "orderlens.policies.credit:PRESET",
        "hierarchy": "orderlens.policies.published:HIERARCHY",
        "dream": "orderlens.policies.published:DREAM",
        "maskgit": "orderlens.policies.published:MASKGIT",
        "info-gain": "orderlens.policies.published:INFO_GAIN",
        "lookum": "orderlens.policies.published:LOOKUM",
        "pc-sampler": "orderlens.policies.published:PC_SAMPLER",
        "uncode": "orderlens.policies.published:PC_SAMPLER",
        "mdlm": "orderlens.policies.published:MDLM",
        "bd3-lm": "orderlens.policies.published:BD3_LM",
        "top-k-margin": "orderlens.policies.published:TOP_K_MARGIN",
        "gt-margin": "orderlens.policies.published:GT_MARGIN",
        "llada2.1": "orderlens.policies.edits:LLADA2_1",
        "llada2.1-quality": "orderlens.policies.edits:QUALITY",
        "llada2.1-speed": "orderlens.policies.edits:SPEED",
        "remdm": "orderlens.policies.remdm:CAP",
        "remdm-rescale": "orderlens.policies.remdm:RESCALE",
        "remdm-conf": "orderlens.policies.remdm:CONF",
        "remdm-loop": "orderlens.policies.remdm:LOOP",
        "remdm-llada": "orderlens.policies.refine:PRESET",
        "rcr": "orderlens.policies.rcr:PRESET",
        "p2": "orderlens.policies.p2:PRESET",
        "mask-predict": "orderlens.policies.mask_predict:PRESET",
        "hierarchy-remask": "orderlens.policies.hierarchy_remask:PRESET",
        "wino": "orderlens.policies.wino:PRESET",
    },
    entry_point_group="orderlens.presets",
    check=_no_preset,
)
