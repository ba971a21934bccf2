"""The audit trail as a page for a data protection officer; it needs no network and no script."""

import datetime
import html
import json
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from ..errors import SettingsError
from .files import digest_of, parse_study
from .reveals import REVEALS
from .studies.book import Book
from .studies.gossip import CHANNEL

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 2rem; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
code { font-size: .85em; overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e8e8e8; } th, td { border-color: #444; } }
"""


def audit_page(site: str, entries: Iterable[dict[str, Any]], book: Book) -> str:
    """Return the page, from the lines of the trail, verified."""
    labels = {state.run_id(0).rpartition("-")[0]: state.label for state in book.studies.values()}
    studies = [
        (
            *(state.label, state.digest, state.proposer, state.study.source),
            *(", ".join(state.study.data.columns), ", ".join(state.study.data.targets), state.state),
        )
        for state in book.studies.values()
    ]
    left: Counter[tuple[str, str, str]] = Counter()
    sizes: Counter[tuple[str, str, str]] = Counter()
    decided, happened, times, n_lines, unsigned = [], [], ["", ""], 0, 0
    for entry in entries:
        kind, when = entry["kind"], _when(entry)
        n_lines, unsigned = n_lines + 1, 0 if kind == "seal" else unsigned + 1
        times = [times[0] or when, when]
        if kind == "left":
            about = "statements about studies" if entry["run"] == CHANNEL else entry["run"].rpartition("-")[0]
            key = labels.get(about, about), entry["to"], entry["message"]
            left[key] += 1
            sizes[key] += entry["bytes"]
        elif kind == "statement":
            decided.append((when, entry["site"], *_words(json.loads(entry["said"]))))
        elif kind not in ("seal", "begun"):
            details = ", ".join(f"{key} {entry[key]}" for key in sorted(entry) if key not in _PLAIN)
            happened.append((when, kind, details))
    sent = [(*key, left[key], sizes[key], REVEALS.get(key[2], "")) for key in sorted(left)]
    signed = "All lines are signed." if not unsigned else f"The last {unsigned} lines are not signed yet."
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Audit of {html.escape(site)}</title>',
            f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>',
            f"<h1>Audit of site {html.escape(site)}</h1>",
            f"<p>{n_lines} lines from {times[0]} to {times[1]}. The chain is whole. {signed}</p>",
            "<h2>Studies</h2>",
            _table(("study", "digest", "proposed by", "data source", "columns", "target", "state"), studies),
            "<h2>What left this site</h2>",
            _table(("study", "to", "message", "times", "bytes", "what it reveals"), sent),
            "<h2>What was said and decided</h2>",
            _table(("time", "site", "statement", "details"), decided),
            "<h2>What happened</h2>",
            _table(("time", "event", "details"), happened),
            "</html>",
        ]
    )


_PLAIN = ("line", "time", "kind", "before", "certificate", "signature")


def _words(said: dict[str, Any]) -> tuple[str, str]:
    kind = said.get("says") or said["type"]
    shown = {key: value for key, value in said.items() if key not in ("type", "says", "text", "pem", "time")}
    if "text" in said:
        shown = _of_proposal(said["text"])
    elif "pem" in said:
        shown["a list of revoked certificates of"] = f"{len(said['pem'])} bytes"
    return str(kind), ", ".join(f"{key} {value}" for key, value in shown.items())


def _of_proposal(text: str) -> dict[str, Any]:
    """Return what a proposed study asks for, as far as its text can be read."""
    about: dict[str, Any] = {"digest": digest_of(text)}
    with suppress(SettingsError):
        study = parse_study(text)
        about = {"study": study.name, **about, "about": study.about or "nothing", "sites": " ".join(study.sites)}
        about |= {"source": study.source, "columns": " ".join(study.data.columns)}
        about |= {"target": " ".join(study.data.targets), "expires": study.expires}
    return about


def _when(entry: dict[str, Any]) -> str:
    return f"{datetime.datetime.fromtimestamp(entry['time'], datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def _table(headings: Iterable[str], rows: Iterable[tuple[Any, ...]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(heading)}</th>' for heading in headings)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    number = ' class="number"' if isinstance(value, int) else ""
    return f"<td{number}>{html.escape(str(value))}</td>"
