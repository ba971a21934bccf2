"""`dekrr node`, `dekrr up`, `dekrr status`: sites as processes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from ..deploy.files import differences, is_site_file, read_network, read_site, site_file
from ..deploy.tables import NetworkFile
from ..errors import DataError, NetworkError, SettingsError
from .network import SITE_FILE, SITES, site_tables

INTERRUPTED, TERMINATED = 130, 143
_PROGRESS_EVERY = 0.5
_ASKED_AT_ONCE = 16
_STALE = 15.0  # seconds


class _Stopped(BaseException):
    """The process received a signal to stop."""


def node(
    site: Annotated[Path, typer.Argument(help="The site's file.", exists=True, dir_okay=False)],
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS; on loopback only.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start from the beginning, without the checkpoint.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is already there.")] = False,
    metrics: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Serve Prometheus metrics on this port of 127.0.0.1.")
    ] = None,
    page: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve a status page on this port of 127.0.0.1; 0 picks a free one."),
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log as JSON lines.")] = False,
) -> None:
    """Take part in a run as one site, and write model.safetensors; or keep running, and train the approved studies.

    A file with data sources is that of a standing site, which runs until it gets a signal. Otherwise the file describes
    one run. Started again after a crash or Ctrl-C, a run resumes from its checkpoint. Exit codes: 3 a site is missing,
    4 declared gone by the others, 5 cut off, 6 no agreement, 130 and 143 stopped with a checkpoint.
    """
    from ..deploy.standard_error import steady
    from ..deploy.standing_file import is_standing

    with steady():
        if is_standing(site):
            _stand(site, page=page, log_json=log_json)
            return
        ports = metrics, page
        _take_part(site, insecure=insecure, fresh=fresh, force=force, ports=ports, log_json=log_json)


def _stand(site: Path, *, page: int | None, log_json: bool) -> None:
    """Be a standing site until a signal comes."""
    from ..deploy.record import log_to
    from ..deploy.standing import STUDIES, StandingSite
    from ..deploy.standing_file import read_standing

    config = read_standing(site)
    standing = StandingSite(config, site.parent)
    log_to(as_json=log_json)
    page = config.page.port if page is None and config.page is not None else page
    if page is not None:
        from ..deploy.page import Page
        from ..deploy.record import logger
        from ..deploy.standing_page import StandingView

        view = StandingView(standing.status, site.parent / STUDIES)
        logger.addHandler(view)
        served = Page(page, config.site, view.sites, view.studies)
        print(f"the page of {config.site}: {served.url}", file=sys.stderr, flush=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: standing.stop())
    standing.run()


def _take_part(
    site: Path, *, insecure: bool, fresh: bool, force: bool, ports: tuple[int | None, int | None], log_json: bool
) -> None:
    from ..deploy import refusals
    from ..deploy.keys import warn_of_end
    from ..deploy.node import MODEL, Node
    from ..deploy.record import RECORD, Log, Record, log_to
    from ..deploy.status import serve_metrics

    config = read_site(site)
    folder = site.parent
    started = Node(config, folder, insecure=insecure, fresh=fresh, force=force)
    log_to(as_json=log_json)
    if config.keys is not None and not insecure:
        warn_of_end(config.site, folder / config.keys.certificate)
    if started.is_over:
        print(f"run {config.run!r} is over, and {folder / MODEL} is there", file=sys.stderr, flush=True)
        started.forget()
        return
    started.listeners += [Log(config.site), Record(folder / RECORD)]
    metrics, page = ports
    page = config.page.port if page is None and config.page is not None else page
    if page is not None:
        from ..deploy.page import Page, SiteView

        view = SiteView(config, folder)
        started.listeners.append(view)
        served = Page(page, config.site, lambda: [view.state(started.status())])
        print(f"the page of {config.site}: {served.url}", file=sys.stderr, flush=True)
    if metrics is not None:
        try:
            serve_metrics(metrics, started.status)
        except OSError as error:
            raise NetworkError(f"--metrics: port {metrics} of 127.0.0.1 cannot be served: {error}") from None
    _stop_on(signal.SIGTERM)
    try:
        with (
            _progress(lambda: msgspec.to_builtins(started.status()), as_json=log_json),
            refusals.told_to(started.refuse_stranger),
        ):
            started.run()
    except KeyboardInterrupt:
        _stop(site, INTERRUPTED)
    except _Stopped:
        _stop(site, TERMINATED)


def _stop_on(number: signal.Signals) -> None:
    def stop(*_: object) -> None:
        raise _Stopped(f"asked to by {number.name}")

    signal.signal(number, stop)


def _stop(site: Path, code: int) -> None:
    print(f"stopped; dekrr node {site} resumes from the checkpoint", file=sys.stderr, flush=True)
    raise typer.Exit(code)


@contextmanager
def _progress(status: Any, *, as_json: bool) -> Iterator[None]:
    """Show the site's progress while the block runs: one line on a terminal, or JSON lines for `dekrr up`."""
    console = Console(stderr=True)
    if not as_json and not console.is_terminal:
        yield
        return
    over = threading.Event()

    def show() -> None:
        if as_json:
            while not over.wait(_PROGRESS_EVERY):
                print(json.dumps({"event": "progress", **status()}), file=sys.stderr, flush=True)
            return
        with Status("", console=console) as line:
            while not over.wait(_PROGRESS_EVERY):
                line.update(_line(status()))

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _line(status: Mapping[str, Any]) -> str:
    waits = _waited_for(status)
    residual = "" if status["residual"] is None else f", residual {status['residual']:.2e}"
    waiting = f", waiting for {waits}" if waits else ""
    return f"{status['phase']}: round {status['round']}{residual}, {_kilobytes(status)} kB sent{waiting}"


def _waited_for(status: Mapping[str, Any]) -> str:
    return ", ".join(name for name, about in status["neighbors"].items() if about["waited for"])


def _kilobytes(status: Mapping[str, Any]) -> str:
    return f"{status['message bytes sent'] / 1e3:.0f}"


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
    from ..deploy.page import Page

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
    served = Page(page, f"network {described.run}", lambda: [process.state() for process in fleet])
    console.print(f"The page of the network: {served.url}", highlight=False, soft_wrap=True)
    if browser:
        webbrowser.open(served.url)
    _stop_on(signal.SIGTERM)
    try:
        fleet += [_Process(name, folder / name / SITE_FILE, options) for name in names]
        with Live(_table(fleet), console=console, refresh_per_second=4, transient=False) as live:
            while any(process.running for process in fleet):
                time.sleep(0.25)
                live.update(_table(fleet))
            live.update(_table(fleet))
        if not console.is_terminal:
            console.print()  # ends the line of the table
    except (KeyboardInterrupt, _Stopped) as stop:
        for process in fleet:
            process.terminate()
        for process in fleet:
            process.wait()
        for process in fleet:
            if process.reason and process.code not in (-signal.SIGTERM, TERMINATED, INTERRUPTED):
                console.print(process.ending, markup=False)
        raise typer.Exit(INTERRUPTED if isinstance(stop, KeyboardInterrupt) else TERMINATED) from None
    failed = [process for process in fleet if process.code]
    if failed:
        listed = "; ".join(process.ending for process in failed)
        raise NetworkError(f"{len(failed)} of {len(fleet)} sites failed: {listed}")
    console.print(f"{len(fleet)} models in {folder}/*/model.safetensors")


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
        from ..deploy.page import SiteView

        self.name = name
        self._view = SiteView(read_site(site), site.parent)
        self.status: dict[str, Any] = {}
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
    def ending(self) -> str:
        """The exit code, and the reason."""
        return f"{self.name} (exit {self.code}): {self.reason}"

    def state(self) -> dict[str, Any]:
        """Return what the page shows of the site."""
        if not self.running:
            self._view.end(self.code, self.reason if self.code else "")
        return self._view.state()

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
            self._view.note(event)
            if "phase" in event:
                self.status = event


def _table(fleet: list[_Process]) -> Table:
    table = Table()
    for heading in ("site", "phase", "round", "residual", "kB sent", "gone", "waiting for"):
        table.add_column(heading, justify="right" if heading in ("round", "residual", "kB sent") else "left")
    for process in fleet:
        status = process.status
        if not status:
            phase = "starting" if process.running else f"exit {process.code}"
            table.add_row(process.name, phase, "", "", "", "", "" if process.running else escape(process.reason))
            continue
        phase = status["phase"] if process.running or not process.code else f"exit {process.code}"
        residual = "" if status["residual"] is None else f"{status['residual']:.2e}"
        waits = _waited_for(status) if process.running and status["phase"] != "finished" else ""
        if not process.running and process.code:
            waits = escape(process.reason)
        gone = ", ".join(status["gone"])
        table.add_row(process.name, phase, str(status["round"]), residual, _kilobytes(status), gone, waits)
    return table


def status(
    file: Annotated[Path, typer.Argument(help="A site.toml, or a network.toml to ask all its sites.", exists=True)],
    folder: Annotated[
        Path | None,
        typer.Option(help="The folder that dekrr network init made; by default `sites` beside the network file."),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="The sites run without TLS.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per site.")] = False,
) -> None:
    """Ask running sites for their state; this needs their keys, so each organisation can ask its own sites."""
    from ..deploy.node import MODEL, link_of
    from ..deploy.standing_file import is_standing
    from ..networks.asking import ask_status

    if is_standing(file):
        _show_standing(file.parent, as_json=as_json)
        return

    def ask(path: Path) -> dict[str, Any]:
        config = read_site(path)
        answer = ask_status(link_of(config, path.parent, insecure=insecure), config.run)
        ended = "no answer; its model is there" if (path.parent / MODEL).exists() else "no answer"
        return answer or {"site": config.site, "phase": ended}

    with ThreadPoolExecutor(max_workers=_ASKED_AT_ONCE) as pool:
        answers = list(pool.map(ask, _site_files(file, folder)))
    if as_json:
        for answer in answers:
            typer.echo(json.dumps(answer))
        return
    table = Table()
    for heading in ("site", "phase", "round", "residual", "kB sent", "gone", "neighbours up", "away"):
        table.add_column(heading, justify="right" if heading in ("round", "residual", "kB sent") else "left")
    for answer in answers:
        if "round" not in answer:
            table.add_row(answer["site"], answer["phase"])
            continue
        residual = "" if answer["residual"] is None else f"{answer['residual']:.2e}"
        states = [about["state"] for about in answer["neighbors"].values()]
        away = ", ".join(name for name, about in answer["neighbors"].items() if about["state"] == "away")
        row = [answer["site"], answer["phase"], str(answer["round"]), residual, _kilobytes(answer)]
        table.add_row(*row, ", ".join(answer["gone"]), f"{states.count('up')} of {len(states)}", away)
    Console().print(table)


def _show_standing(folder: Path, *, as_json: bool) -> None:
    """Print what a standing site wrote about itself a second ago."""
    from ..deploy.standing import STATE

    path = folder / STATE
    state = json.loads(path.read_text()) if path.exists() else None
    if state is None or time.time() - state["time"] > _STALE:
        raise NetworkError(f"the site in {folder} is not running, or cannot write {path}")
    if as_json:
        typer.echo(json.dumps(state))
        return
    console = Console(highlight=False, soft_wrap=True)
    near = ", ".join(f"{name} {about}" for name, about in state["neighbors"].items())
    console.print(f"{state['site']}: {near}; the certificate expires in {state['certificate days left']:.0f} days")
    for study in state["studies"]:
        versions = ", ".join(f"{one['number']} {one['state']}" for one in study["versions"])
        console.print(f"  {study['study']}: {study['state']}; runs: {versions or 'none'}", markup=False)
    for run in state["runs"]:
        console.print(f"  run {run['run']}: {_line(run)}", markup=False)


def _site_files(file: Path, folder: Path | None) -> list[Path]:
    if is_site_file(file):
        return [file]
    return [(folder or file.parent / SITES) / entry.name / SITE_FILE for entry in read_network(file).site]
