"""The exceptions of dekrr, and its way to warn."""

import sys
import warnings
from pathlib import Path
from typing import Self

PACKAGE = str(Path(__file__).parent)
_LONGEST = 300  # characters of a text from elsewhere


class DekrrError(Exception):
    """Base class of all exceptions of dekrr.

    The text is for this site alone: it may name rows and values. Another site is told `code` and at most `column`.
    """

    code = "error"
    column: str | None = None

    def about(self, column: str | None = None, code: str | None = None) -> Self:
        """Return the error with what another site may be told of it: a column, and a code of its own."""
        self.column = column
        self.code = code or self.code
        return self


class DataError(DekrrError, ValueError):
    """The rows, responses or site labels cannot be used as they are."""

    code = "rows"


class UnusableError(DataError):
    """A column of a table cannot be used; the text names the column and the reason, and says what to do."""

    code = "column-unusable"


class NotNumbersError(DataError):
    """A column has something else than finite numbers: words, NaN or infinite values."""

    code = "column-not-numbers"


class SettingsError(DekrrError, ValueError):
    """A setting, or a combination of settings, makes no sense."""

    code = "settings"


class TopologyError(DekrrError, ValueError):
    """The graph of sites cannot carry a decentralised run."""


class MessageError(DekrrError):
    """A message is not what the protocol expects at this point; `sender` is the sending site, or None if unknown."""

    code = "message"

    def __init__(self, text: str, sender: str | None = None) -> None:
        super().__init__(text)
        self.sender = sender


class ModelFileError(DekrrError, ValueError):
    """A file is not a model that this version can read."""


class KeysError(DekrrError, ValueError):
    """A key, a certificate or a request for one cannot be used."""

    code = "keys"


class NetworkError(DekrrError):
    """A run over a mesh ended without a model; `exit_code` tells scripts the reason."""

    code = "network"
    exit_code = 1


class AbsenceError(NetworkError):
    """A site did not appear before the deadline."""

    code = "absence"
    exit_code = 3


class GoneError(NetworkError):
    """The other sites have declared this site gone, and go on without it."""

    code = "gone"
    exit_code = 4


class DisconnectedError(NetworkError):
    """The graph of the remaining sites is not connected, or they are not a majority."""

    code = "disconnected"
    exit_code = 5


class AgreementError(NetworkError):
    """Sites do not agree on the run's settings, columns or version."""

    code = "agreement"
    exit_code = 6


class LossError(NetworkError):
    """A site was lost when masked sums were under way: others without it would tell its own."""

    code = "loss"
    exit_code = 7


class DekrrWarning(UserWarning):
    """What dekrr warns of; `dekrr` prints it as one line."""


class NoiseWarning(DekrrWarning):
    """Noise of differential privacy costs much of a model's accuracy, or all of it."""


class WrongRowsWarning(DekrrWarning):
    """The rows of a site look wrong beside those of the others."""


class PoorFitWarning(DekrrWarning):
    """Models predict held-out rows worse than their mean or sites alone do, or few rows carry most of the variance."""


def warn(text: str, category: type[Warning] = DekrrWarning) -> None:
    """Warn, and point at the line of the caller's code that called into this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_code.co_filename.startswith(PACKAGE) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def one_line(text: str, longest: int = _LONGEST) -> str:
    r"""Return a text from elsewhere as one line that is safe to print, cut and without control characters."""
    cleaned = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return cleaned if len(cleaned) <= longest else f"{cleaned[:longest]}..."


__all__ = sorted(
    name for name, one in globals().items() if isinstance(one, type) and issubclass(one, DekrrError | DekrrWarning)
)
