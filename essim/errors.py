"""The exception tree: every error a user can cause is one of these, with its exit code."""

from __future__ import annotations

from pathlib import Path

TORCH_HINT = "Where essim is installed: pip install torch==2.13.0"


class EssimError(Exception):
    """Base of every error essim raises on purpose.

    Parameters
    ----------
    message
        What is wrong, in one sentence without a final period.
    hint
        What to do about it; empty if there is nothing to say.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        super().__init__(message + (f". {hint}" if hint else ""))


class BadValueError(ValueError):
    """A value that cannot be: what is wrong and what to do, for whoever knows where it stands.

    Parameters
    ----------
    message, hint
        As of `EssimError`.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        super().__init__(message + (f". {hint}" if hint else ""))

    @staticmethod
    def of(error: ValueError) -> BadValueError:
        """Return any `ValueError` as one of these."""
        return error if isinstance(error, BadValueError) else BadValueError(str(error))


class InputError(EssimError):
    """Bad usage or input (exit 2): says where, which key, what is wrong and what to do."""

    exit_code = 2

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        file: str | Path | None = None,
        line: int | None = None,
        key: str = "",
    ) -> None:
        place = "" if file is None else str(file) + (f":{line}" if line else "")
        prefix = "".join(f"{part}: " for part in (place, key) if part)
        super().__init__(prefix + message, hint)


class PricingError(EssimError):
    """An op has no acceptable price, e.g. under ``--strict`` (exit 3)."""

    exit_code = 3


class AbsentError(EssimError):
    """Something this needs is not here: a GPU, an extra, a compiler, a browser (exit 4)."""

    exit_code = 4
