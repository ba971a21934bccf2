"""How the runs of a study have ended, at this site and at the others, in words."""

import datetime
import re
from typing import NamedTuple

from ...errors import one_line
from .book import LAST, StudyState
from .items import Report
from .versions import HELD_BACK, Versions

_HOW = {"failed": "has failed", "missed": "has been missed", HELD_BACK: "has been held back"}
_SHORT = 110  # characters of a reason in a list
WHOLE = 4000  # characters of any other reason: errors are shorter, and a neighbour may write what it likes


class End(NamedTuple):
    """How run `number` stands at a site: running, done, missed or failed, and why."""

    number: int
    site: str
    state: str
    reason: str
    time: float


def ends(state: StudyState, versions: Versions, site: str) -> list[End]:
    """Return how each of the last runs stands at each site that is known to have begun it, in the order of the runs.

    `versions`: of this site. `site`: this site, whose own word is newer than its report.
    """
    found = {
        (number, who): End(number, who, "done" if said.outcome == "model" else "failed", said.reason, said.time)
        for (who, number), said in state.reports.items()
    }
    for one in versions.last(LAST):
        found[one.number, site] = End(one.number, site, one.state, one.reason, one.time)
    return [found[key]._replace(reason=one_line(found[key].reason, WHOLE)) for key in sorted(found)]


def told(all_ends: list[End]) -> list[str]:
    """Return a line for each end, with the whole reason; a reason that another site gave is not repeated.

    Examples
    --------
    >>> print(*told([End(2, "a", "failed", "run 2 has failed at b: too few rows", 0.0),
    ...              End(2, "b", "failed", "too few rows", 0.0)]), sep="\\n")
    run 2, 1970-01-01 00:00 UTC, a: failed, because it has failed at b
    run 2, 1970-01-01 00:00 UTC, b: failed: too few rows
    """
    known = {(end.number, end.site) for end in all_ends if end.state != "done"}
    lines = []
    for end in all_ends:
        when = datetime.datetime.fromtimestamp(end.time, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        cause = _cause(end)
        why = f": {end.reason}" if end.reason else ""
        if cause is not None and (end.number, cause) in known:
            why = f", because it has failed at {cause}"
        lines.append(f"run {end.number}, {when}, {end.site}: {end.state}{why}")
    return lines


def last_failure(all_ends: list[End], site: str) -> str:
    """Return why the last run failed or its model is not used: here, or else at others; otherwise an empty string.

    Examples
    --------
    >>> last_failure([End(1, "a", "done", "", 0.0), End(2, "b", "failed", "too few rows", 0.0)], "a")
    'run 2 has failed at b: too few rows'
    """
    last = max((end.number for end in all_ends), default=0)
    failed = [end for end in all_ends if end.number == last and end.state in _HOW]
    for end in sorted(failed, key=lambda end: (end.site != site, end.site)):
        if _cause(end) is not None:
            return end.reason
        return f"run {end.number} {_HOW[end.state]} at {end.site}: {end.reason}"
    return ""


def why_over(state: StudyState) -> str:
    """Return why sites have refused or stopped a study, in their words; an empty string if none has."""
    said = {who: one for who, one in sorted(state.decisions.items()) if who in state.study.sites}
    return "; ".join(
        f"{who} ({one.by}): {one_line(one.reason, WHOLE) or 'no reason given'}"
        for who, one in said.items()
        if one.says != "approve"
    )


def shortened(reason: str) -> str:
    """Return a reason for a list.

    Examples
    --------
    >>> shortened("too few rows")
    'too few rows'
    >>> shortened("word " * 50)[-11:]
    'word word …'
    """
    return reason if len(reason) <= _SHORT else f"{reason[:_SHORT].rsplit(' ', 1)[0]} …"


def is_echo(said: Report) -> bool:
    """Return whether a site reports that a run has failed because it has failed elsewhere, which is told already."""
    return _cause(said) is not None


def _cause(end: End | Report) -> str | None:
    """Return the site whose end ended this run, if it was another's."""
    found = re.fullmatch(rf"run {end.number} has failed at ([^:]+): .*", end.reason, flags=re.S)
    return found[1] if found else None
