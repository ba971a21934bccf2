"""The page of a run of the mesh, from the records that its sites wrote."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...errors import DataError
from ...mesh.record import HELD_OUT
from .figures import Panel, Picture
from .paper_tables import Table, cells
from .report_page import Section, render

RECORDS = "run.jsonl"
_ABOUT = (
    "What the sites of a mesh wrote down while they trained together. Every site knows only its own part; this page "
    "has the parts of the sites whose records it was made from."
)
_HELD_OUT = ("held-out rows", *HELD_OUT)
_ENDS = ("ended", "finished", "stopped")
_LISTED = ("gone", "down", "up", "resumed", "refused", "refusing", "unconfirmed", "checkpoint lost", "stopped")
_POINTS = 200  # the largest number of points of a line
_LINE = {"linewidth": 1.2, "alpha": 0.8}


class _RecordLine(msgspec.Struct, frozen=True):
    time: float
    event: str


@dataclass
class SiteRecord:
    site: str
    run: str
    start: dict[str, Any]  # the event of its last start
    events: list[dict[str, Any]] = field(default_factory=list)  # all others, without exchanges
    times: list[float] = field(default_factory=list)  # of every exchange, as the next ones
    rounds: list[int] = field(default_factory=list)
    residuals: list[float] = field(default_factory=list)

    @property
    def end(self) -> dict[str, Any]:
        """The event of its end; empty if it did not end."""
        return next((event for event in reversed(self.events) if event["event"] in _ENDS), {})

    @property
    def result(self) -> dict[str, Any]:
        """The event that its model is final; empty if it has no model."""
        return next((event for event in reversed(self.events) if event["event"] == "finished"), {})

    def residual_path(self) -> tuple[np.ndarray, np.ndarray]:
        """Return rounds and residuals, with a gap (NaN) wherever the count of rounds started again."""
        rounds, residuals = np.array(self.rounds, dtype=float), np.array(self.residuals, dtype=float)
        keep = rounds > 0
        rounds, residuals = rounds[keep], residuals[keep]
        again = np.flatnonzero(np.diff(rounds) < 0) + 1
        return np.insert(rounds, again, np.nan), np.insert(residuals, again, np.nan)

    def round_times(self) -> tuple[np.ndarray, np.ndarray]:
        """Return rounds and their durations in milliseconds."""
        rounds, times = np.array(self.rounds), np.array(self.times)
        next_one = np.flatnonzero((np.diff(rounds) == 1) & (rounds[:-1] > 0)) + 1
        return rounds[next_one], 1e3 * (times[next_one] - times[next_one - 1])


def records_in(path: Path) -> list[Path]:
    """Return the records at a path: the file itself, or those in the folder, in its subfolders or in `sites/*`."""
    if path.is_file():
        return [path]
    return sorted({*path.glob(RECORDS), *path.glob(f"*/{RECORDS}"), *path.glob(f"sites/*/{RECORDS}")})


def read_records(paths: Sequence[Path]) -> list[SiteRecord]:
    """Return each site's record of its last run in each file."""
    records = []
    for path in paths:
        found: SiteRecord | None = None
        for line in _lines(path):
            if line["event"] == "started":
                if found is None or (found.run, found.site) != (line["run"], line["site"]):
                    found = SiteRecord(line["site"], line["run"], line)
                else:
                    found.events.append(line | {"event": "started again"})
                    found.start = line
            elif found is None:
                raise DataError(f"{path} does not begin with a start; is it the record of a site?")
            elif line["event"] == "exchange":
                found.times.append(line["time"])
                found.rounds.append(line["round"])
                found.residuals.append(np.nan if line["residual"] is None else line["residual"])
            else:
                found.events.append(line)
        if found is not None:
            records.append(found)
    if not records:
        raise DataError("there is no record of a run; dekrr node and dekrr up write them, run.jsonl for each site")
    return sorted(records, key=lambda record: (record.run, record.site))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            msgspec.json.decode(line, type=_RecordLine)
            yield msgspec.json.decode(line)
        except (msgspec.MsgspecError, ValueError) as error:
            if number == len(lines):  # a crash has cut the last line short
                return
            raise DataError(f"{path}, line {number}: not a line of a record: {error}") from None


def write_run_report(path: Path, out: Path | None = None) -> Path:
    """Write the page of the runs whose records are at `path`, beside them by default, and return the page's path."""
    records = read_records(records_in(path))
    runs: dict[str, list[SiteRecord]] = {}
    for record in records:
        runs.setdefault(record.run, []).append(record)
    facts = [
        ("sites' records", str(len(records))),
        ("models", str(sum(bool(record.result) for record in records))),
        ("rounds", str(max((max(record.rounds, default=0) for record in records), default=0))),
        ("kB of messages", f"{sum(record.end.get('message bytes sent', 0) for record in records) / 1e3:.0f}"),
    ]
    return render(
        out or (path if path.is_dir() else path.parent) / "report.html",
        title=f"The run {' and '.join(runs)}",
        intro=_ABOUT,
        sections=[_section(run, group, i) for i, (run, group) in enumerate(runs.items())],
        facts=facts,
        settings=[pair for group in runs.values() for pair in _settings(group)],
        report_command=f"dekrr report {shlex.quote(str(path))}",
    )


def _section(run: str, records: Sequence[SiteRecord], number: int) -> Section:
    figures = pictures_of_run(records, f"run-{number}")
    tables = [_sites(records), _events(records), _traffic(records)]
    return Section(f"run-{number}", f"Run {run}", "", "", figures, tables)


def pictures_of_run(records: Sequence[SiteRecord], name: str) -> list[Picture]:
    """Return the figures of a run: residuals and durations by round, and the bytes that each site sent."""

    def residuals(axes: Any) -> None:
        for record in records:
            rounds, relative = record.residual_path()
            stride = _stride(len(rounds))
            axes.plot(rounds[::stride], relative[::stride], **_LINE)
        axes.set(yscale="log", xlabel="round", ylabel="relative residual", title="Residual")

    def durations(axes: Any) -> None:
        for record in records:
            axes.plot(*_medians(*record.round_times()), **_LINE)
        axes.set(yscale="log", xlabel="round", ylabel="milliseconds", title="Time of a round")

    def sent(axes: Any) -> None:
        bottom = np.zeros(len(records))
        ends = [sorted(record.end.get("neighbors", {}).items()) for record in records]
        sent_by = [[about["bytes sent"] for _, about in end] for end in ends]
        for place in range(max(map(len, sent_by), default=0)):
            sizes = np.array([sent[place] / 1e3 if place < len(sent) else 0.0 for sent in sent_by])
            axes.barh(range(len(records)), sizes, left=bottom, height=0.7, edgecolor="white", linewidth=0.6)
            bottom += sizes
        axes.set_yticks(range(len(records)), [record.site for record in records])
        axes.invert_yaxis()
        axes.set(xlabel="kB sent", title="Bytes to each neighbour")
        axes.grid(visible=False, axis="y")

    height = max(3.2, 0.22 * len(records) + 1)
    panels = [Panel("the relative residual by round", residuals), Panel("milliseconds of each round", durations)]
    bars = [Panel("kilobytes that each site sent to each of its neighbours", sent)]
    about_lines = (
        "One line per site. The residual is the largest that the site knew of; a time is the median of up to "
        f"{_stride(max(len(record.rounds) for record in records))} rounds."
    )
    about_bars = "Encoded messages without framing; each part of a bar is one neighbour."
    return [Picture(name, about_lines, panels), Picture(f"{name}-bytes", about_bars, bars, (4.4, height))]


def _stride(count: int) -> int:
    return max(1, -(-count // _POINTS))


def _medians(rounds: np.ndarray, milliseconds: np.ndarray) -> tuple[list[float], list[float]]:
    stride = _stride(len(rounds))
    starts = range(0, len(rounds), stride)
    return (
        [float(np.median(rounds[i : i + stride])) for i in starts],
        [max(1e-3, float(np.median(milliseconds[i : i + stride]))) for i in starts],
    )


def _sites(records: Sequence[SiteRecord]) -> Table:
    rows = []
    measured = [name for name in _HELD_OUT if any(name in record.result for record in records)]
    for record in records:
        result, end = record.result, record.end
        first = min([record.start["time"], *record.times[:1]])
        last = end.get("time", record.times[-1] if record.times else first)
        milliseconds = record.round_times()[1]
        rounds = result.get("rounds", max(record.rounds, default=0))
        figures = [_number(result.get(name)) for name in ("relative residual", *measured)]
        of_round = f"{np.median(milliseconds):.2f}" if len(milliseconds) else ""
        spent = (f"{last - first:.1f}", _number(end.get("seconds waiting")), of_round)
        gone = ", ".join(end.get("gone", [])) or "none"
        has = "model" if result else "no model"
        rows.append(cells(record.site, record.start["rows"], has, rounds, *figures, *spent, gone))
    columns = ["site", "rows", "has", "rounds", "residual", *measured, "seconds", "waiting", "ms a round", "gone"]
    note = (
        "Seconds from its last start to its end, of them waiting; the median time of a round; who is not in its model."
    )
    if measured:
        note += (
            " Held-out errors are of each site's model on its own rows that a second training was without: "
            "RSE is 0 for a perfect model, and 1 for the mean of the responses."
        )
    return Table("Sites", columns, rows, note)


def _events(records: Sequence[SiteRecord]) -> Table:
    start = min(record.start["time"] for record in records)
    events = [(event["time"], record.site, event) for record in records for event in _without_first_ups(record)]
    start = min([start, *(when for when, _, _ in events)])
    rows = [
        cells(f"{when - start:.1f} s", site, event["event"], _details(event))
        for when, site, event in sorted(events, key=lambda entry: entry[:2])
        if event["event"] in (*_LISTED, "started again")
    ]
    rows = rows or [cells("none", "", "", "")]
    return Table("Who went, who came back, what was refused", ["after", "site", "event", "about"], rows, "", 4)


def _without_first_ups(record: SiteRecord) -> Iterator[dict[str, Any]]:
    """Yield the events, without those that a neighbour came up for the first time."""
    was_down = set()
    for event in record.events:
        if event["event"] == "down":
            was_down.add(event["neighbor"])
        if event["event"] != "up" or event["neighbor"] in was_down:
            yield event


def _details(event: dict[str, Any]) -> str:
    if event["event"] in ("started again", "stopped"):
        return str(event.get("reason", ""))
    kept = {key: value for key, value in event.items() if key not in ("time", "event")}
    return "; ".join(
        f"{key} {', '.join(map(str, value)) if isinstance(value, list) else value}" for key, value in kept.items()
    )


def _traffic(records: Sequence[SiteRecord]) -> Table:
    rows = [
        cells(record.site, neighbor, about["state"], f"{about['bytes sent'] / 1e3:.1f}")
        for record in records
        for neighbor, about in sorted(record.end.get("neighbors", {}).items())
    ]
    note = "Encoded messages without framing, hellos and repeats; the neighbour's state at the site's end."
    return Table("Traffic", ["site", "neighbour", "state", "kB sent"], rows, note, 2)


def _settings(records: Sequence[SiteRecord]) -> list[tuple[str, str]]:
    terms: dict[str, set[str]] = {}
    for record in records:
        for key, value in record.start["terms"].items():
            terms.setdefault(key, set()).add(value)
    tuned = next((record.result for record in records if "held-out error" in record.result), {})
    chosen = {
        f"{key}, chosen": f"{tuned[key]:g}" for key in ("sigma", "alpha", "consensus", "own weight") if key in tuned
    }
    listed = {"run": records[0].run} | {key: " or ".join(sorted(values)) for key, values in terms.items()} | chosen
    return list(listed.items())


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.3g}"
