"""Published samplers by name: each preset is a policy spec with its source and what we made of it.

A preset is written where an order stands and is a whole policy: ``fast-dllm`` is
``max-prob+threshold=0.9``. Traces always hold the spec, never the preset's name, so that two names of one
rule are one sampler. A preset whose order has a seed takes one: ``maskgit:3``.

The entries themselves stand in ``rules/presets.toml``.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources

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


_DATA = resources.files("orderlens.rules").joinpath("presets.toml").read_text("utf-8")

PRESETS: Registry[Preset] = Registry(
    "preset",
    {name: Preset(**entry) for name, entry in tomllib.loads(_DATA).items()},
    entry_point_group="orderlens.presets",
    check=_no_preset,
)
