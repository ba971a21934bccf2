"""`dekrr study`, `dekrr audit`, `dekrr relay`: what people at a standing site do."""

import getpass
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ...errors import SettingsError, one_line
from ..audit_page import audit_page
from ..audit_trail import TRAIL, read
from ..audit_trail import verify as verified
from ..carrier import relay as relaying
from ..config import StandingFile, StudyFile
from ..files import digest_of, parse_study, read_relay, read_standing
from ..identity import SiteIdentity, Trust
from ..keys import Keys
from ..ledger import Folder, Ledger
from ..policy import POLICY, Policy, read_policy, refusals, source_rules
from ..site_rows import LEDGER
from ..standing import KEPT
from ..studies.book import Book, StudyState
from ..studies.describe import describe_rows, in_a_line
from ..studies.in_words import in_words
from ..studies.items import Call, Proposal, Revocations
from ..studies.preview import preview as previewed
from ..studies.run_endings import WHOLE, ends, last_failure, shortened, told, why_over
from ..studies.versions import STUDIES, Versions
from .setting_up import say

study_app = typer.Typer(help="Propose, approve and follow studies of standing sites.", no_args_is_help=True)
audit_app = typer.Typer(help="Check and read this site's audit trail.", no_args_is_help=True)
SiteOption = Annotated[Path, typer.Option("--site", help="The standing site's file.", exists=True, dir_okay=False)]
SITE = Path("site.toml")
Named = Annotated[str, typer.Argument(help="The study's name, or the beginning of its digest.")]


def _opened(site: Path) -> tuple[StandingFile, Book, Policy]:
    """Return the site's file, the book of its studies, and its policy."""
    config = read_standing(site)
    book = Book(site.parent, SiteIdentity.of(config, site.parent))
    return config, book, read_policy(site.parent / POLICY)


def _print(rows: Iterable[Iterable[str]], *headings: str, right: Collection[str] = ()) -> None:
    """Print a table, as wide as it needs to be where it is not for a terminal; `right`: columns of numbers."""
    table = Table()
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _versions(site: Path, state: StudyState, book: Book) -> Versions:
    return Versions(site.parent / STUDIES / state.label, book.store)


@study_app.command()
def propose(
    file: Annotated[Path, typer.Argument(help="The study's file.", exists=True, dir_okay=False)],
    site: SiteOption = SITE,
) -> None:
    """Sign a study in this site's name, and let it pass to all sites; this site must approve it, too."""
    text = file.read_text(encoding="utf-8")
    study = parse_study(text, str(file))
    config, book, _ = _opened(site)
    digest = digest_of(text)
    if digest in book.studies:
        raise SettingsError(f"{file} is already proposed, as {book.studies[digest].label}")
    if config.site not in study.sites:
        raise SettingsError(f"{file} is for {', '.join(study.sites)}, and not for this site, {config.site}")
    if study.source in config.sources:  # what this site's rows do not allow is refused here, before others look at it
        previewed(study, config, site.parent)
    book.say(Proposal(text=text, time=time.time()))
    is_alone = [state.digest for state in book.studies.values() if state.study.name == study.name and not state.is_over]
    name = study.name if is_alone == [digest] else book.studies[digest].label
    say(
        f"proposed {study.name}, digest {digest}. Next: dekrr study preview {name}, and then "
        f"dekrr study approve {name} --digest {digest[:8]}"
    )


@study_app.command()
def show(name: Named, site: SiteOption = SITE) -> None:
    """Print a study, in its words and in ours; who has decided what; which rules it breaks; how its runs ended."""
    config, book, policy = _opened(site)
    state = book.find(name)
    say(state.text)
    say(f"digest {state.digest}, proposed by {state.proposer}: {state.state}")
    for who in state.study.sites:
        decision = state.decisions.get(who)
        said = f"{decision.says}, {decision.by}: {one_line(decision.reason, WHOLE)}" if decision else "not decided"
        say(f"  {who}: {said}")
    ledger = Ledger(Folder(site.parent / KEPT / state.study.source / LEDGER))
    for line in in_words(state.study, policy, ledger.entries, time.time()):
        say(f"  {line}")
    for broken in refusals(policy, state.study, state.proposer, config.sources):
        say(f"  this site's policy refuses it: {broken}")
    for line in told(ends(state, _versions(site, state, book), config.site)) or ["no run yet"]:
        say(f"  {line}")


@study_app.command("list")
def list_studies(site: SiteOption = SITE) -> None:
    """List all studies that this site knows, with the runs, the version in use, and why the last run failed."""
    config, book, _ = _opened(site)
    rows, reasons = [], []
    for state in book.studies.values():
        versions = _versions(site, state, book)
        runs = ", ".join(f"{one.number} {one.state}" for one in versions.states)
        decision = state.decisions.get(config.site)
        here = decision.says if decision else "not decided" if config.site in state.study.sites else "no part"
        current = str(versions.current or "")
        rows.append([state.label, state.digest[:12], state.proposer, state.state, here, runs, current])
        why = why_over(state) or last_failure(ends(state, versions, config.site), config.site)
        if why:
            reasons.append(f"{state.label}: {shortened(why)} (dekrr study show {state.label} has all of it)")
    _print(rows, "study", "digest", "proposer", "state", "this site", "runs", "current")
    for reason in reasons:
        say(reason)


def _person() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "a person"


@study_app.command()
def approve(
    name: Named,
    digest: Annotated[str, typer.Option(help="The digest that was reviewed, or its first 8 digits.")],
    reason: Annotated[str, typer.Option(help="For the audit trail.")] = "",
    site: SiteOption = SITE,
) -> None:
    """Approve a study for this site: its runs then train on this site's rows. A rule of the policy cannot be waived."""
    config, book, policy = _opened(site)
    state = book.find(name, digest)
    if len(digest) < 8 or not state.digest.startswith(digest):
        raise SettingsError(f"the digest of {state.label} is {state.digest}, not {digest}: was another text reviewed?")
    if config.site not in state.study.sites:
        raise SettingsError(f"{state.label} is not for this site, {config.site}")
    broken = refusals(policy, state.study, state.proposer, config.sources)
    if broken:
        raise SettingsError(f"this site's policy refuses {state.label}: {'; '.join(broken)}")
    if source_rules(policy, state.study).describe:
        told = in_a_line(describe_rows(state.study, config, site.parent, policy))
        say(f"the other sites are told: {told}")
        reason = f"{reason}; {told}".removeprefix("; ")
    book.decide(state.digest, "approve", reason, _person())
    say(f"{config.site} approves {state.label}: {state.state}")


@study_app.command()
def refuse(
    name: Named,
    reason: Annotated[str, typer.Option(help="Why; all sites can read it.")],
    site: SiteOption = SITE,
) -> None:
    """Refuse a study for this site; no site can then run it."""
    config, book, _ = _opened(site)
    state = book.find(name)
    book.decide(state.digest, "refuse", reason, _person())
    say(f"{config.site} refuses {state.label}")


@study_app.command()
def stop(name: Named, reason: Annotated[str, typer.Option(help="Why.")] = "", site: SiteOption = SITE) -> None:
    """Stop a study at all sites: a run in progress ends, and no other begins."""
    config, book, _ = _opened(site)
    state = book.find(name)
    book.decide(state.digest, "stop", reason, _person())
    say(f"{config.site} stops {state.label}")


@study_app.command("run")
def run_again(name: Named, reason: Annotated[str, typer.Option(help="Why.")] = "", site: SiteOption = SITE) -> None:
    """Call for another run of an approved study, over the rows that the sites have now."""
    config, book, _ = _opened(site)
    state = book.find(name)
    if not state.may_run:
        raise SettingsError(f"{state.label} cannot run: it is {state.state}")
    number = state.number + 1
    book.say(Call(study=state.digest, number=number, reason=reason or f"asked by {_person()}", time=time.time()))
    say(f"{config.site} calls for run {number} of {state.label}")


@study_app.command()
def use(
    name: Named,
    version: Annotated[int, typer.Argument(help="The number of a run.")],
    reason: Annotated[str, typer.Option(help="For the audit trail.")] = "",
    site: SiteOption = SITE,
) -> None:
    """Let `current` point to another version of a study's model, for instance the previous one."""

    _, book, _ = _opened(site)
    state = book.find(name)
    versions = _versions(site, state, book)
    versions.choose(version, _person(), reason)
    say(f"{versions.folder / 'current'} is version {version}")


@study_app.command()
def preview(
    study: Annotated[str, typer.Argument(help="A study's file, or the name of a proposed study.")],
    site: SiteOption = SITE,
) -> None:
    """Run a study at this site alone, with made-up neighbours, and list what would leave. Nothing leaves."""
    config, book, policy = _opened(site)
    found = _found(study, book)
    for broken in refusals(policy, found, config.site, config.sources):
        say(f"this site's policy refuses it: {broken}")
    result = previewed(found, config, site.parent)
    rows = (map(str, line) for line in result.lines)
    _print(rows, "to", "message", "times", "bytes", "what it reveals", right=("times", "bytes"))
    say(f"{result.n_rows} rows here; made-up rows at {', '.join(result.neighbors)}. Nothing has left this site.")


@study_app.command()
def describe(
    study: Annotated[str, typer.Argument(help="A study's file, or the name of a proposed study.")],
    site: SiteOption = SITE,
) -> None:
    """Print counts, means and missing values of what a study reads here, rounded, none of few rows. Nothing leaves."""
    config, book, policy = _opened(site)
    found = _found(study, book)
    numbers = "values", "missing", "mean"
    _print(describe_rows(found, config, site.parent, policy), "column", *numbers, right=numbers)
    sends = source_rules(policy, found).describe
    say(f"An approval by a person here {'has' if sends else 'does not have'} this table (describe in policy.toml).")


def _found(study: str, book: Book) -> StudyFile:
    """Return the study of a file, or of a name."""
    path = Path(study)
    return parse_study(path.read_text(encoding="utf-8"), study) if path.is_file() else book.find(study).study


@study_app.command()
def revoke(
    revoked: Annotated[Path, typer.Argument(help="The list that dekrr network revoke wrote.", exists=True)],
    site: SiteOption = SITE,
) -> None:
    """Pass the authority's list of revoked certificates on to all sites."""
    _, book, _ = _opened(site)
    book.say(Revocations(pem=revoked.read_text(), time=time.time()))
    say(f"{len(book.identity.trust.revocations or [])} certificates are revoked; all sites will be told")


@audit_app.command()
def verify(
    site: SiteOption = SITE,
) -> None:
    """Check that the audit trail is whole: its chain, its signatures, and the lines that reports of runs name."""
    trail, config, _ = _trail(site)
    first, last, unsigned = verified(*trail)
    note = f"; the last {unsigned} are not signed yet" if unsigned else ""
    earlier = f"; those before line {first} are not here" if first > 1 else ""
    say(f"the audit trail of {config.site} is whole: {last - first + 1} lines{note}{earlier}")


@audit_app.command()
def report(
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("audit.html"), site: SiteOption = SITE
) -> None:
    """Write a page for a data protection officer: which studies, who decided, what left, to whom, how much."""
    trail, config, book = _trail(site)
    out.write_text(audit_page(config.site, read(*trail), book), encoding="utf-8")
    say(f"{out} is the report on the audit trail")


def _trail(site: Path) -> tuple[tuple[Path, Trust, str, list[tuple[int, str]]], StandingFile, Book]:
    """Return what is needed to check the trail, the site's file, and the book of its studies."""
    config, book, _ = _opened(site)
    heads = [
        (said.audit_line, said.audit_hash)
        for state in book.studies.values()
        for (who, _), said in state.reports.items()
        if who == config.site
    ]
    return (site.parent / TRAIL, book.identity.trust, config.site, heads), config, book


def relay(
    file: Annotated[Path, typer.Argument(help="The relay's file.", exists=True, dir_okay=False)],
) -> None:
    """Relay frames between sites that accept no connections. The relay sees names and sizes; frames are sealed."""
    config = read_relay(file)
    keys = Keys.of(config, file.parent)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    signal.signal(signal.SIGINT, lambda *_: over.set())
    with relaying(config.listen, config.sites, keys):
        print(f"relaying at {config.listen} for {', '.join(config.sites)}", file=sys.stderr, flush=True)
        over.wait()
