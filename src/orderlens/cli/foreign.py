"""Exceptions of other libraries as one line: what happened and what helps.

Our own errors say it themselves. What nobody foresaw is called unexpected, which is a defect to be reported:
the fuzz test looks for that word.
"""

from __future__ import annotations

from orderlens.errors import one_line
from orderlens.files import refusal
from orderlens.machine import is_out_of_memory

_PACKAGES = {
    "torch": "orderlens[torch]",
    "safetensors": "orderlens[torch]",
    "tokenizers": "orderlens[torch]",
    "huggingface_hub": "orderlens[torch]",
    "transformers": "orderlens[hf]",
    "lm_eval": "orderlens[eval]",
    "polars": "orderlens[polars]",
    "s3fs": "s3fs",
    "gcsfs": "gcsfs",
    "adlfs": "adlfs",
}
"""Package to import → what to install."""
_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError")


def explain(error: Exception) -> tuple[str, int]:
    """Return the line to print and the exit code for an exception that is not ours."""
    name, text = type(error).__name__, one_line(error)
    if getattr(error, "is_user_input_error", False):
        return text, 2
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        return f"the package {top} is missing: pip install '{_PACKAGES.get(top, top)}'", 2
    if name in _CREDENTIALS or "Unable to locate credentials" in text:
        return f"no credentials for the object store ({text}); set them up as its client expects", 2
    if isinstance(error, RecursionError):
        return "the input is nested too deeply to be read", 2
    if is_out_of_memory(error):
        return "not enough memory; use fewer or shorter texts at once (--batch-size, --limit, lengths)", 1
    if isinstance(error, OverflowError):
        return f"a number is too large ({text})", 2
    if isinstance(error, UnicodeError):
        return f"a text or a name holds characters that cannot be stored ({text})", 2
    if isinstance(error, OSError):
        where = f"{error.filename}: " if isinstance(error.filename, str) else ""
        return f"the system refused: {where}{refusal(error)}", 1
    return f"unexpected {name}: {text} (run again with --debug for the traceback)", 1
