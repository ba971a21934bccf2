"""`dekrr up`: all sites of a network as processes of this machine."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from ...errors import DataError, NetworkError, SettingsError
from ..config import NetworkFile
from ..files import differences, read_network, read_site, site_file
from ..record import HELD_OUT
from .setting_up import SITE_FILE, SITES, site_tables
from .taking_part import INTERRUPTED, TERMINATED, Signalled, kilobytes, stop_on, waited_for

_WARNINGS = ("noisy", "exposed", "looks wrong")  # events that a person should read
_WHERE_KNOWN = (*HELD_OUT, "gone")  # columns that most networks do not need
_COLUMNS = ("site", "phase", "round", "residual", "kB sent", *HELD_OUT, "gone", "waiting for")
_LEFT_OUT = ("kB sent", "residual", "waiting for", "round", "gone", *reversed(HELD_OUT))  # where it is narrow, in order


def up(
    network: Annotated[Path, typer.Argument(help="The network file.", exists=True, dir_okay=False)],
    folder: Annotated[
        Path | None,
        typer.Option(help="The folder that dekrr network init made; by default `sites` beside the network file."),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS; on loopback only.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace models that are already there.")] = False,
    page: Annotated[
        int, typer.Option(min=0, max=65535, help="The port of 127.0.0.1 for the status page; 0 picks a free one.")
    ] = 0,
    browser: Annotated[bool, typer.Option("--browser", help="Open the page in the browser.")] = False,
) -> None:
    """Run every site of a network as a process on this machine, and watch them in a table.

    A status page shows the same; its address is printed first.
    """
    from ..page import Page

    folder = folder or network.parent / SITES
    described = read_network(network)
    names = [entry.name for entry in described.site]
    missing = [name for name in names if not (folder / name / SITE_FILE).exists()]
    if missing:
        again = " --update" if len(missing) < len(names) else ""
        raise DataError(f"{folder} lacks {', '.join(missing)}; first run: dekrr network init{again} {network}")
    _refuse_changed(described, network, folder)
    options = ["--log-json", *(["--insecure"] if insecure else []), *(["--force"] if force else [])]
    console = Console()
    fleet: list[_Process] = []
    served = Page(page, f"network {described.run}", lambda: [one for process in fleet for one in process.states()])
    console.print(f"The page of the network: {served.url}", highlight=False, soft_wrap=True)
    if browser:
        webbrowser.open(served.url)
    stop_on(signal.SIGTERM)
    try:
        fleet += [_Process(name, folder / name / SITE_FILE, options) for name in names]
        refused = _watch(fleet, console)
    except (KeyboardInterrupt, Signalled) as stop:
        for process in fleet:
            process.terminate()
        for process in fleet:
            process.wait()
        ended = [process for process in fleet if process.reason]
        ended = [process for process in ended if process.code not in (-signal.SIGTERM, TERMINATED, INTERRUPTED)]
        if ended:
            console.print(_endings(ended), markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED if isinstance(stop, KeyboardInterrupt) else TERMINATED) from None
    for warning, sites in _together((process.name, text) for process in fleet for text in process.warnings).items():
        console.print(f"warning at {', '.join(sites)}: {warning}", markup=False, highlight=False, soft_wrap=True)
    if refused:
        raise NetworkError(
            f"{len(refused)} of {len(fleet)} sites cannot take part:\n{_endings(refused)}\nThe others would have "
            f"waited for start_patience = {described.start_patience:g} seconds, and were stopped"
        )
    failed = [process for process in fleet if process.code]
    if failed:
        raise NetworkError(f"{len(failed)} of {len(fleet)} sites failed:\n{_endings(failed)}")
    console.print(f"{len(fleet)} models in {folder}/*/model.safetensors")


def _watch(fleet: list["_Process"], console: Console) -> list["_Process"]:
    """Show the sites until all have ended; return those that ended before they began, for which the others stop.

    A terminal has a live table. Elsewhere, for instance in a log, there is a line for each change of a site's phase.
    """
    said: dict[str, str] = {}
    refused: list[_Process] = []

    def tell() -> None:
        for process in fleet:
            if said.get(process.name) != process.phase:
                said[process.name] = process.phase
                console.print(f"{time.strftime('%H:%M:%S')} {process.line}", markup=False, soft_wrap=True)

    with Live(console=console, refresh_per_second=4) if console.is_terminal else nullcontext() as live:
        while any(process.running for process in fleet):
            time.sleep(0.25)
            if live is not None:
                live.update(_table(fleet, console.width))
            else:
                tell()
            if not refused:
                refused = [process for process in fleet if not process.running and process.code and not process.began]
                for process in fleet if refused else ():
                    process.terminate()
        if live is not None:
            live.update(_table(fleet, console.width))
    if not console.is_terminal:
        tell()
        console.print(_table(fleet, console.width))
    return refused


def _refuse_changed(described: NetworkFile, network: Path, folder: Path) -> None:
    """Refuse a network file that has changed since the sites' files were made of it: what is in those would be run."""
    changed: dict[str, list[str]] = {}
    for name, table in site_tables(described, network.parent.resolve()).items():
        for change in differences(read_site(folder / name / SITE_FILE), site_file(table)):
            changed.setdefault(change, []).append(name)
    if changed:
        listed = "; ".join(f"{change} (at {', '.join(sites)})" for change, sites in changed.items())
        raise SettingsError(
            f"{network} has changed since dekrr network init made the sites' files. In these files {listed}. Run dekrr "
            f"network init --update {network} first: it writes the files again, and keeps keys and models"
        )


class _Process:
    """One site's process, its last status, and the last line of its log that is not JSON."""

    def __init__(self, name: str, site: Path, options: list[str]) -> None:
        from ..page import SiteView
        from ..status import of_one_run

        self.name = name
        self.status: dict[str, Any] = {}
        config = read_site(site)
        self._view = SiteView(lambda: of_one_run(config, site.parent, self.status or None), site.parent)
        self.errors: dict[str, float] = {}  # on the site's held-out rows, where it has some
        self.warnings: list[str] = []
        self.began = False
        self.reason = ""
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from dekrr.cli import main; main()", "node", str(site), *options],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def running(self) -> bool:
        return self._process.poll() is None or self._reader.is_alive()

    @property
    def code(self) -> int:
        return self._process.returncode or 0

    @property
    def phase(self) -> str:
        """What the site does, in a word or two."""
        if self.running or not self.code:
            return str(self.status.get("phase", "starting"))
        return f"exit {self.code}"

    @property
    def line(self) -> str:
        """What the site does, in a line; why it failed is told once, at the end."""
        if not self.running and self.code:
            return f"{self.name}: {self.phase}"
        waits = waited_for(self.status) if self.running and self.status and self.phase != "finished" else ""
        about = f", waits for {waits}" if waits else ""
        return f"{self.name}: {self.phase}" + (f", round {self.status['round']}{about}" if self.status else "")

    def states(self) -> list[dict[str, Any]]:
        """Return what the page shows of the site."""
        if not self.running:
            self._view.end(self.code, self.reason if self.code else "")
        return self._view.sites()

    def terminate(self) -> None:
        """Ask the process to stop."""
        self._process.terminate()

    def wait(self) -> None:
        """Wait until a process that was asked to stop has written its checkpoint and ended."""
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            try:
                event = json.loads(line)
            except ValueError:
                self.reason = line.strip() or self.reason
                continue
            if not isinstance(event, dict):
                continue
            self._view.note({"time": time.time(), **event})
            self.began |= event.get("event") == "started"
            self.errors |= {name: event[name] for name in HELD_OUT if name in event}
            if event.get("event") in _WARNINGS:
                self.warnings.append(event["reason"])
            if "phase" in event:
                self.status = event


def _endings(fleet: Iterable[_Process]) -> str:
    """Return why sites failed, a line for each reason, with all sites that have it."""
    ends = _together(
        (f"{process.name} (exit {process.code})", process.reason.removeprefix("error: ")) for process in fleet
    )
    return "\n".join(f"  {', '.join(sites)}: {reason}" for reason, sites in ends.items())


def _together(said: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return who says each text.

    Examples
    --------
    >>> _together([("a", "no rows"), ("b", "no keys"), ("c", "no rows")])
    {'no rows': ['a', 'c'], 'no keys': ['b']}
    """
    found: dict[str, list[str]] = {}
    for who, text in said:
        found.setdefault(text, []).append(who)
    return found


def _table(fleet: Sequence[_Process], width: int) -> Table:
    """Return the state of all sites as a table; columns are left out where it would be too wide, names never."""
    rows = [_row(process) for process in fleet]
    headings = [name for name in _COLUMNS if name not in _WHERE_KNOWN or any(row.get(name) for row in rows)]
    for name in _LEFT_OUT:
        if _width(headings, rows) > width and name in headings:
            headings.remove(name)
    table = Table()
    for name in headings:
        is_text = name in ("site", "phase", "gone", "waiting for")
        overflow: Literal["fold", "ellipsis"] = "fold" if name == "site" else "ellipsis"
        table.add_column(name, justify="left" if is_text else "right", no_wrap=name != "waiting for", overflow=overflow)
    for row in rows:
        table.add_row(*(escape(row.get(name, "")) for name in headings))
    return table


def _width(headings: Sequence[str], rows: Sequence[Mapping[str, str]]) -> int:
    """Return the least width of a table with these columns; who is waited for may take several lines."""
    longest = {name: max(len(name), *(len(row.get(name, "")) for row in rows)) for name in headings}
    return 1 + sum(3 + (len(name) if name == "waiting for" else size) for name, size in longest.items())


def _row(process: _Process) -> dict[str, str]:
    status, row = process.status, {"site": process.name, "phase": process.phase}
    if not status:
        return row
    waits = waited_for(status) if process.running and status["phase"] != "finished" else ""
    row |= {name: f"{value:.4f}" for name, value in process.errors.items()}
    row |= {"round": str(status["round"]), "kB sent": kilobytes(status), "gone": ", ".join(status["gone"])}
    return row | {"residual": "" if status["residual"] is None else f"{status['residual']:.2e}", "waiting for": waits}
