"""What other sites are told of a run that failed: a code with its fixed words, and at most a column of the study.

A report is signed, passed on, and kept by all sites for ever. The text of an error may name a row, a value or a path.
No part of such a text is ever in a report: it stays in the log of the site.
"""

from ...errors import DekrrError, MessageError
from ..config import StudyFile
from ..policy import PolicyError

WORDS = {
    "absence": "a site did not appear before the deadline",
    "agreement": "sites do not agree on the run's settings, columns or version",
    "budget": "the budget of differential privacy over these rows is spent",
    "classes": "a row has none of the classes that the study names",
    "column-missing": "a column of the study is not in its table",
    "column-not-numbers": "a column has something else than finite numbers",
    "column-unusable": "a column cannot be used as it is",
    "disconnected": "the sites that are left are not connected, or no majority",
    "disk": "a file cannot be read or written",
    "error": "an error that is no fault of the study",
    "few-rows": "it has too few rows for the sums that the study asks for",
    "gone": "the other sites have ended the run without it",
    "history": "the sums of this run and of earlier ones together would give rows away",
    "keys": "a key or a certificate cannot be used",
    "loss": "another site was lost when masked sums were under way, and there is no model yet",
    "message": "a message cannot be used",
    "network": "the run ended without a model",
    "policy": "its policy refuses the run",
    "rows": "its rows cannot be used as they are",
    "settings": "the settings of the study do not suit its rows, or the other sites",
    "transform": "a response is not one that the transform of the study takes",
    "wrong-rows": "rows of a site look wrong beside those of all",
    "weights": "a weight is no finite number of at least 0",
}


def outward(error: BaseException, study: StudyFile, site: str) -> str:
    """Return what other sites are told of an error: nothing of its text.

    `study`: a column, or another site, is named only if the study names it. `site`: this site.

    Examples
    --------
    >>> import datetime
    >>> from dekrr.mesh.config import DataTable
    >>> from dekrr.errors import NotNumbersError
    >>> study = StudyFile(name="air", sites=("a", "b"), source="air", expires=datetime.date(2030, 1, 1),
    ...                   data=DataTable(target="pm25", columns=("temperature",)))
    >>> outward(NotNumbersError("row 3 has 'Clark'").about("temperature"), study, "a")
    "column-not-numbers: a column has something else than finite numbers: 'temperature'; the log of a has the details"
    """
    code = error.code if isinstance(error, DekrrError) else "disk" if isinstance(error, OSError) else "error"
    code = code if code in WORDS else "error"
    named = []
    if isinstance(error, DekrrError):
        named += [repr(name) for name in study.data.used if error.column in (name, repr(name))]
    if isinstance(error, MessageError):
        named += [f"of {name}" for name in study.sites if name == error.sender]
    if isinstance(error, PolicyError):
        named += error.rules
    return f"{code}: {WORDS[code]}{': ' * bool(named)}{', '.join(named)}; the log of {site} has the details"
