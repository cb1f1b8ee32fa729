"""From ``hf:ORG/NAME[@REV]`` to a local folder; the download itself is in ``orderlens.common.hub``.

Fetches only weights (safetensors), configuration and tokenizer files, never remote code. Does not depend on
the contents of the files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orderlens.common.hub import Repository, snapshot
from orderlens.errors import ModelLoadError, UserInputError

PATTERNS = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
"""Files to fetch: weights, configuration, tokenizer, chat template."""
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
    """Return the local folder of a hub model; files that are not in the cache are downloaded.

    Args:
        spec: ``hf:ORG/NAME[@REV]``.
        cache_dir: folder of the hub cache, the client's default if None.
        endpoint: address of the hub, the client's default if None.
        offline: never connect; by default the client's setting (``HF_HUB_OFFLINE``).
        patterns: files to fetch; a shorter list describes a model without its weights.
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
