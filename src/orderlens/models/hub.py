"""From ``hf:ORG/NAME[@REV]`` to a local folder, through the hub's own client and cache.

Only weights (safetensors), configuration and tokenizer files are fetched; remote code never is. Every
failure is one line that names the model and the remedy. Knows nothing of what is in the files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orderlens.errors import MissingPackageError, ModelLoadError, UserInputError, one_line

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
    return _download(HubSpec.parse(spec), cache_dir, endpoint, bool(offline), patterns)


def _download(
    spec: HubSpec, cache_dir: Path | None, endpoint: str | None, offline: bool, patterns: Sequence[str]
) -> Path:
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise MissingPackageError(
            f"model '{spec}' needs huggingface-hub; install orderlens[torch] or name a local folder"
        ) from None
    try:
        folder = snapshot_download(
            spec.repo,
            revision=spec.revision,
            cache_dir=cache_dir,
            endpoint=endpoint,
            allow_patterns=list(patterns),
            local_files_only=offline,
        )
    except errors.GatedRepoError:
        raise ModelLoadError(
            f"model '{spec}' is gated: accept its licence on the hub, then run 'hf auth login'"
        ) from None
    except errors.RevisionNotFoundError:
        raise ModelLoadError(f"model '{spec}': the hub has no revision '{spec.revision}'") from None
    except errors.RepositoryNotFoundError:
        raise ModelLoadError(f"model '{spec}' does not exist on the hub, or needs 'hf auth login'") from None
    except errors.LocalEntryNotFoundError:
        raise ModelLoadError(
            f"model '{spec}' is not in the local cache and the hub cannot be reached; "
            "connect once, or copy the checkpoint here and name its folder"
        ) from None
    except (errors.HfHubHTTPError, OSError) as error:
        raise ModelLoadError(f"model '{spec}' could not be downloaded: {one_line(error)}") from None
    return Path(str(folder))
