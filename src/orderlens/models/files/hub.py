"""From ``hf:ORG/NAME[@REV]`` to a local folder; the download itself is in ``orderlens.common.hub``.

Only weights (safetensors), configuration and tokenizer files are fetched; remote code never is. Knows
nothing of what is in the files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orderlens.common.hub import Repository, snapshot
from orderlens.errors import ModelLoadError, UserInputError

PATTERNS = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
"""Files worth fetching: weights, configuration, tokenizer, chat template."""
_SPEC = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True, slots=True)
class HubSpec:
    """A model on the hub, optionally at a branch, tag or commit."""

    repo: str
    revision: str | None

    @classmethod
    def parse(cls, text: str) -> HubSpec:
        """Read ``hf:ORG/NAME[@REV]``."""
        match = _SPEC.fullmatch(text)
        if match is None:
            raise UserInputError(f"model '{text}' is not of the form hf:ORG/NAME or hf:ORG/NAME@REVISION")
        return cls(match["repo"], match["revision"])

    def __str__(self) -> str:
        return f"hf:{self.repo}" + (f"@{self.revision}" if self.revision else "")


def resolve_snapshot(
    spec: str,
    *,
    cache_dir: Path | None = None,
    endpoint: str | None = None,
    offline: bool | None = None,
    patterns: Sequence[str] = PATTERNS,
) -> Path:
    """Return the local folder that holds a hub model, downloading what the cache lacks.

    Args:
        spec: ``hf:ORG/NAME[@REV]``.
        cache_dir: where the hub cache lies, the client's default if None.
        endpoint: address of the hub, the client's default if None.
        offline: never connect; by default the client's own setting (``HF_HUB_OFFLINE``).
        patterns: files that must be there; fewer of them to look at a model without its weights.
    """
    wanted = HubSpec.parse(spec)
    repository = Repository(
        "model",
        wanted.repo,
        wanted.revision,
        f"model '{wanted}'",
        "copy the checkpoint here and name its folder",
    )
    return snapshot(
        repository, patterns, ModelLoadError, cache_dir=cache_dir, endpoint=endpoint, offline=bool(offline)
    )
