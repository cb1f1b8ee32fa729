"""Downloads files of the Hugging Face hub, and resolves ``hf:ORG/NAME[@REV]`` to a local folder.

Uses the hub's own client and cache. Of a model only weights (safetensors), configuration and tokenizer files
are fetched, never remote code. Every failure is one line that names the repository and a remedy. Does not
depend on the contents of the files.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orderlens.errors import MissingPackageError, ModelLoadError, UserInputError, one_line

PATIENCE_S = 5.0
"""Seconds to wait for the hub's answer."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository on the hub, and its name in messages.

    Attributes:
        kind: model or data set.
        repo: ``ORG/NAME``.
        revision: branch, tag or commit; the default branch if None.
        label: its name in messages, e.g. ``model 'hf:org/name'``.
        instead: remedy if it is not available, e.g. ``give a local file with --data``.
    """

    kind: Literal["model", "dataset"]
    repo: str
    revision: str | None
    label: str
    instead: str


def is_offline(endpoint: str | None = None) -> bool:
    """Return whether the hub cannot be reached; the client's offline setting counts too.

    Without a network the client would try five times for every file, with growing pauses. One request in
    advance avoids that; any answer counts, also a refusal. The client's session is used, so proxies and
    mirrors are respected.
    """
    from huggingface_hub import constants, get_session

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # hide its retries
    if constants.HF_HUB_OFFLINE:
        return True
    try:
        get_session().head(endpoint or constants.ENDPOINT, timeout=PATIENCE_S)
    except Exception:  # noqa: BLE001  the errors differ between versions of the client
        return True
    return False


def snapshot(
    wanted: Repository,
    patterns: Sequence[str],
    error: type[UserInputError],
    *,
    cache_dir: Path | None = None,
    endpoint: str | None = None,
    offline: bool = False,
) -> Path:
    """Return the local folder with the files that match ``patterns``, downloading what the cache lacks.

    Args:
        wanted: the repository.
        patterns: globs of the files.
        error: the class to raise if the files are not available.
        cache_dir: the hub cache; the client's default if None.
        endpoint: address of the hub, the client's default if None.
        offline: never connect; the client's own setting (``HF_HUB_OFFLINE``) holds as well.
    """
    label = wanted.label
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise MissingPackageError(
            f"{label} needs huggingface-hub: pip install 'orderlens[torch]', or {wanted.instead}"
        ) from None
    try:
        folder = snapshot_download(
            wanted.repo,
            repo_type=wanted.kind,
            revision=wanted.revision,
            cache_dir=cache_dir,
            endpoint=endpoint,
            allow_patterns=list(patterns),
            local_files_only=offline or is_offline(endpoint),
        )
    except errors.GatedRepoError:
        raise error(f"{label} is gated: accept its licence on the hub, then run 'hf auth login'") from None
    except errors.RevisionNotFoundError:
        raise error(f"{label}: the hub has no revision '{wanted.revision}'") from None
    except errors.RepositoryNotFoundError:
        raise error(f"{label} does not exist on the hub, or needs 'hf auth login'") from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError):
        raise error(
            f"{label} is not in the local cache and the hub cannot be reached; "
            f"connect to the internet once, or {wanted.instead}"
        ) from None
    except (errors.HfHubHTTPError, OSError, ValueError, RuntimeError) as problem:
        raise error(
            f"{label} could not be downloaded: {one_line(problem)[:200]}; {wanted.instead} instead"
        ) from None
    return Path(str(folder))


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
