"""The phases of a site in a run, and the transitions between them: a state machine.

All changes of a session's phase, and all errors that end a session, are in this table. The function `as_markdown`
writes the table in docs/protocol.md from it.
"""

from enum import StrEnum

from ...errors import AbsenceError, AgreementError, DisconnectedError, GoneError, NetworkError


class Phase(StrEnum):
    """The phase of a site."""

    GREETING = "greeting"
    REFUSING = "refusing"
    RUNNING = "running"
    CLOSING = "closing"
    FINISHED = "finished"


class Cause(StrEnum):
    """The cause of a transition, in the words of the page."""

    RESUMED = "a checkpoint is there"
    AGREED = "all sites agree on the terms"
    DISAGREED = "a neighbour has other terms, or a refusal"
    REFUSAL_KNOWN = "all neighbours know, or 5 s"
    ABSENT = "start_patience is over"
    COMPLETE = "a frame from every neighbour: next exchange"
    LOST = "a site is gone: new epoch"
    RETURNED = "the procedure returned"
    CLOSED = "as many empty exchanges as the diameter"
    CONFIRMED = "a neighbour has finished"
    UNCONFIRMED = "a neighbour is away for a patience"
    DECLARED_GONE = "declared gone by others"
    CUT_OFF = "cut off from the others"
    RELEASED = "all neighbours have finished, or a patience"


_GREETING, _REFUSING, _RUNNING, _CLOSING, _FINISHED = Phase
Target = Phase | type[NetworkError] | None  # None: the session is over, and has a result

TABLE: dict[tuple[Phase, Cause], Target] = {
    (_GREETING, Cause.RESUMED): _RUNNING,
    (_GREETING, Cause.AGREED): _RUNNING,
    (_GREETING, Cause.LOST): _GREETING,
    (_GREETING, Cause.DISAGREED): _REFUSING,
    (_GREETING, Cause.ABSENT): AbsenceError,
    (_GREETING, Cause.DECLARED_GONE): GoneError,
    (_GREETING, Cause.CUT_OFF): DisconnectedError,
    (_REFUSING, Cause.REFUSAL_KNOWN): AgreementError,
    (_RUNNING, Cause.COMPLETE): _RUNNING,
    (_RUNNING, Cause.LOST): _RUNNING,
    (_RUNNING, Cause.RETURNED): _CLOSING,
    (_RUNNING, Cause.DECLARED_GONE): GoneError,
    (_RUNNING, Cause.CUT_OFF): DisconnectedError,
    (_CLOSING, Cause.COMPLETE): _CLOSING,
    (_CLOSING, Cause.LOST): _RUNNING,
    (_CLOSING, Cause.CLOSED): _FINISHED,
    (_CLOSING, Cause.CONFIRMED): _FINISHED,
    (_CLOSING, Cause.UNCONFIRMED): _FINISHED,
    (_CLOSING, Cause.DECLARED_GONE): GoneError,
    (_CLOSING, Cause.CUT_OFF): DisconnectedError,
    (_FINISHED, Cause.RELEASED): None,
}


def after(phase: Phase, cause: Cause) -> Phase:
    """Return the phase that `cause` leads to from `phase`.

    Examples
    --------
    >>> after(Phase.GREETING, Cause.AGREED)
    <Phase.RUNNING: 'running'>
    """
    target = TABLE[phase, cause]
    assert isinstance(target, Phase)
    return target


def error_after(phase: Phase, cause: Cause) -> type[NetworkError]:
    """Return the error with which `cause` ends a session in `phase`."""
    target = TABLE[phase, cause]
    assert isinstance(target, type)
    return target


def as_markdown() -> str:
    """Return the table in Markdown."""
    lines = ["| in the phase | if | the site goes to |", "|---|---|---|"]
    for (phase, cause), target in TABLE.items():
        if isinstance(target, Phase):
            there = str(target)
        else:
            there = f"its end (exit {target.exit_code if target is not None else 0})"
        lines.append(f"| {phase} | {cause} | {there} |")
    return "\n".join(lines)
