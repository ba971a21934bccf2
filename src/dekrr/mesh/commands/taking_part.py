"""`dekrr node` and `dekrr status`: a site as a process."""

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.status import Status
from rich.table import Table

from ...errors import NetworkError, SettingsError
from ..files import is_site_file, read_network, read_site
from .setting_up import SITE_FILE, SITES

INTERRUPTED, TERMINATED = 130, 143
_PROGRESS_EVERY = 0.5


class Signalled(BaseException):
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
    4 declared gone by the others, 5 cut off, 6 no agreement, 7 a loss amid masked sums, 130 and 143 stopped with a
    checkpoint.
    """
    from ..files import is_standing
    from ..standard_error import steady

    with steady():
        ports = metrics, page
        if is_standing(site):
            given = {"--insecure": insecure, "--fresh": fresh, "--force": force}
            if any(given.values()):
                words = ", ".join(word for word, is_given in given.items() if is_given)
                raise SettingsError(f"{words}: for a single run; {site} is the file of a standing site")
            _stand(site, ports=ports, log_json=log_json)
            return
        _take_part(site, insecure=insecure, fresh=fresh, force=force, ports=ports, log_json=log_json)


def _stand(site: Path, *, ports: tuple[int | None, int | None], log_json: bool) -> None:
    """Be a standing site until a signal comes."""
    from ..files import read_standing
    from ..record import log_to
    from ..standing import StandingSite

    config = read_standing(site)
    standing = StandingSite(config, site.parent)
    log_to(as_json=log_json)
    _show(standing.status, config, site.parent, ports)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: standing.stop(signal.Signals(got).name))
    standing.run()


def _show(
    status: Callable[[], dict[str, Any]], config: Any, folder: Path, ports: tuple[int | None, int | None]
) -> None:
    """Serve the metrics and the page of a site, where they are asked for."""
    metrics, page = ports
    page = config.page.port if page is None and config.page is not None else page
    if metrics is not None:
        from ..monitoring import serve

        serve(metrics, status)
    if page is not None:
        from ..page import Page, SiteView
        from ..record import logger

        view = SiteView(status, folder)
        logger.addHandler(view)
        served = Page(page, config.site, view.sites, view.studies)
        logger.info("the page of %s: %s", config.site, served.url)


def _take_part(
    site: Path, *, insecure: bool, fresh: bool, force: bool, ports: tuple[int | None, int | None], log_json: bool
) -> None:
    from .. import tls_refusals
    from ..keys import warn_of_end
    from ..node import MODEL, Node
    from ..record import RECORD, Log, Record, log_to
    from ..status import of_one_run

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

    def status() -> dict[str, Any]:
        return msgspec.to_builtins(started.status())  # type: ignore[no-any-return]

    _show(lambda: of_one_run(config, folder, status()), config, folder, ports)
    stop_on(signal.SIGTERM)
    try:
        with _progress(status, as_json=log_json), tls_refusals.told_to(started.refuse_stranger):
            started.run()
    except KeyboardInterrupt:
        _stop(site, INTERRUPTED)
    except Signalled:
        _stop(site, TERMINATED)


def stop_on(number: signal.Signals) -> None:
    """Raise `Signalled` in the main thread when a signal comes."""

    def stop(*_: object) -> None:
        raise Signalled(f"asked to by {number.name}")

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
    waits = waited_for(status)
    residual = "" if status["residual"] is None else f", residual {status['residual']:.2e}"
    waiting = f", waiting for {waits}" if waits else ""
    return f"{status['phase']}: round {status['round']}{residual}, {kilobytes(status)} kB sent{waiting}"


def waited_for(status: Mapping[str, Any]) -> str:
    """Return the neighbours that a site waits for."""
    return ", ".join(name for name, about in status["neighbors"].items() if about["waited for"])


def kilobytes(status: Mapping[str, Any]) -> str:
    """Return the size of the messages that a site has sent."""
    return f"{status['message bytes sent'] / 1e3:.0f}"


def status(
    file: Annotated[Path, typer.Argument(help="A site.toml, or a network.toml to ask all its sites.", exists=True)],
    folder: Annotated[
        Path | None,
        typer.Option(help="The folder that dekrr network init made; by default `sites` beside the network file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per site.")] = False,
) -> None:
    """Print what running sites on this machine wrote about themselves a second ago."""
    from ..files import is_standing
    from ..node import MODEL
    from ..status import STATE, read_state

    if is_standing(file):
        _show_standing(file.parent, as_json=as_json)
        return

    def ask(path: Path) -> dict[str, Any]:
        ended = "no answer; its model is there" if (path.parent / MODEL).exists() else "no answer"
        return read_state(path.parent / STATE) or {"site": read_site(path).site, "phase": ended}

    answers = [ask(path) for path in _site_files(file, folder)]
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
        row = [answer["site"], answer["phase"], str(answer["round"]), residual, kilobytes(answer)]
        table.add_row(*row, ", ".join(answer["gone"]), f"{states.count('up')} of {len(states)}", away)
    Console().print(table)


def _show_standing(folder: Path, *, as_json: bool) -> None:
    """Print what a standing site wrote about itself a second ago."""
    from ..status import STATE, read_state

    path = folder / STATE
    state = read_state(path)
    if state is None:
        raise NetworkError(f"the site in {folder} is not running, or cannot write {path}")
    if as_json:
        typer.echo(json.dumps(state))
        return
    console = Console(highlight=False, soft_wrap=True)
    near = ", ".join(f"{name} {about}" for name, about in state["neighbors"].items())
    console.print(f"{state['site']}: {near}; the certificate expires in {state['certificate days left']:.0f} days")
    for study in state["studies"]:
        versions = ", ".join(f"{one['number']} {one['state']}" for one in study["versions"])
        why = f"; {study['why']}" if study.get("why") else ""
        console.print(f"  {study['study']}: {study['state']}; runs: {versions or 'none'}{why}", markup=False)
    for run in state["runs"]:
        console.print(f"  run {run['run']}: {_line(run)}", markup=False)


def _site_files(file: Path, folder: Path | None) -> list[Path]:
    if is_site_file(file):
        return [file]
    return [(folder or file.parent / SITES) / entry.name / SITE_FILE for entry in read_network(file).site]
