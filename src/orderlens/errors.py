"""All exceptions that a caller may want to catch.

A message is one line that names the problem and the remedy; the command line prints it unchanged.
"""

from __future__ import annotations


class OrderLensError(Exception):
    """Base class of all errors of this package. The command line exits with ``exit_code``."""

    exit_code = 1


class UserInputError(OrderLensError, ValueError):
    """An argument is not valid; the message says what is allowed."""

    exit_code = 2


class UnknownNameError(UserInputError, LookupError):
    """A model, order, task or table that does not exist."""

    def __str__(self) -> str:
        """Undo LookupError's quoting of the message."""
        return str(self.args[0]) if self.args else ""


class DataFileError(UserInputError):
    """A data file is missing, unreadable or malformed; the message names file and line."""


class MissingPackageError(UserInputError, ImportError):
    """An optional package is needed; the message says how to install it."""


class ModelLoadError(UserInputError):
    """A checkpoint is incomplete, of an unknown layout or too large."""


class ModelOutputError(OrderLensError):
    """A model produced NaN, an all −inf row, or gave a target zero probability."""


class RunError(UserInputError):
    """A run folder does not match the request: another spec, a newer schema, or not a run."""


class CorruptRunError(OrderLensError):
    """Stored parts do not match their records; ``orderlens runs verify`` says which."""


class StorageError(OrderLensError):
    """The file system refused to write (disk full, read-only); committed files stay valid."""


class UnitsFailedError(OrderLensError):
    """Some work units failed and were set aside; all others are committed."""


class WorkersLostError(OrderLensError):
    """All workers of a run died; their committed units are kept."""


class DeviceMemoryError(OrderLensError):
    """The device ran out of memory; nothing was lost, and a smaller batch may fit."""


class UndefinedFigureError(UserInputError):
    """The runs lack the data of a requested figure; the message says which."""


class PluginError(UserInputError):
    """A plug-in cannot be used; the message names its package."""


class StoppedError(OrderLensError):
    """The user or the system stopped the command; the message says what is kept and how to resume."""

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def one_line(error: BaseException) -> str:
    """Return the message of ``error`` as one line, or the name of its type if it has no message."""
    text = " ".join(str(error).split())
    return text or type(error).__name__


def counted(number: int, what: str) -> str:
    """Return ``1 check`` or ``1,200 checks``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
