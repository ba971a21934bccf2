"""A study in words, for the person who approves it: what it reads, its guards, what is new, what it spends."""

import json
from collections.abc import Sequence

from ..config import StudyFile
from ..ledger import PastRun
from ..policy import Policy, source_rules

_GUARDS = {
    "min_rows": "sums are over at least {} rows",
    "rows_per_feature": "at least {} rows for each feature of a sum",
    "max_leverage": "rows with a leverage above {} are in no sum",
    "max_maps": "sums of at most {} feature maps",
    "shortlist_rows": "{} rows of the neighbours for each feature that is asked about",
}
_MASKED = "sums are masked"
_TOLD = ("columns", "target", "weight", "sites", "raw columns", "classes", "bounds", "seed", "n_features", "privacy")


def in_words(study: StudyFile, policy: Policy, entries: Sequence[PastRun], now: float) -> list[str]:
    """Return what a person should know before approving a study, a line for each.

    `entries`: the earlier runs over the same source. `now`: seconds since 1970.

    Examples
    --------
    >>> import datetime
    >>> from dekrr.mesh.config import DataTable
    >>> study = StudyFile(name="air", sites=("a", "b"), source="air", expires=datetime.date(2030, 1, 1),
    ...                   data=DataTable(target="pm25", columns=("temperature",)))
    >>> in_words(study, Policy(), [], 0.0)[0]
    'It reads of air: temperature; it predicts pm25.'
    """
    settings, data, terms = study.method_settings(), study.data, study.terms("", study.sites)
    weight = f"; rows weigh what {data.weight} says" if data.weight else ""
    raw = " Words that enough rows have, and dates, are told." if data.raw else ""
    lines = [
        f"It reads of {study.source}: {', '.join(data.columns)}; it predicts {', '.join(data.targets)}{weight}.{raw}"
    ]
    given = [words.format(getattr(settings, name)) for name, words in _GUARDS.items() if hasattr(settings, name)]
    masked = _MASKED if getattr(settings, "masks", False) else "sums are not masked"
    lines.append(f"Guards: {'; '.join(given)}; {masked}.")
    lines += _differences(terms, entries)
    rules = source_rules(policy, study)
    recent = len({entry.run for entry in entries if now - entry.time < 30 * 86400})
    often = f" It runs every {study.every_hours:g} hours." if study.every_hours else ""
    most = f" of at most {rules.runs_per_month}" if rules.runs_per_month else ""
    lines.append(f"It spends: a run; {recent}{most} in the last 30 days over this source.{often}")
    privacy = getattr(settings, "privacy", None)
    if privacy is not None:
        spent = sum(entry.epsilon or 0.0 for entry in entries)
        lines.append(f"It spends epsilon {privacy.epsilon:g} a run; {spent:g} of {rules.total_epsilon:g} are spent.")
        lines.append("At worst: what epsilon and delta allow, whatever the proposer knows beside.")
        return lines
    others = len(study.sites) - 1
    alone = " With one other site, masks hide nothing: it gets this site's sums." if others < 2 else ""
    if masked == _MASKED and any(entry.about.get("seed") == terms["seed"] for entry in entries):
        alone += " With an earlier run of this seed over the same rows, a neighbour may work out this site's own sums."
    lines.append(
        "At worst, without differential privacy: whoever holds candidates can tell which of them are among the rows; "
        f"rows that are unlike all others can be placed roughly.{alone} No row is in a message."
    )
    return lines


def _differences(terms: dict[str, str], entries: Sequence[PastRun]) -> list[str]:
    """Return what of a study is unlike all earlier runs over its source."""
    if not entries:
        return ["It is the first study over this source."]
    found = []
    for name in _TOLD:
        before = dict.fromkeys(entry.about.get(name, "") for entry in entries)
        if (now := terms.get(name, "")) not in before:
            found.append(f"{name} is {_plain(now)}, and was {' or '.join(_plain(one) for one in before)}")
    if not found:
        return ["It asks what an earlier study over this source has asked."]
    return ["Unlike earlier studies over this source: " + "; ".join(found) + "."]


def _plain(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return "none" if value in (None, "", []) else str(value)
