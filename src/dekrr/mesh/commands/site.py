"""`dekrr site`: the files of a standing site."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ...errors import SettingsError
from .network import SITE_FILE, say

app = typer.Typer(help="Make the files of a standing site.", no_args_is_help=True)
POLICY_TEXT = """\
# What this site takes part in. A line that begins with # has the default; see docs/studies.md.
# approval = "person"             # "policy": what breaks no rule is approved without a person
# proposers = []                  # the sites that may propose; none listed: every site
# methods = ["dekrr", "allreduce"]
# most_features = 0               # of a site, and of the shared part; 0: any number
# masks = false                   # true: also with differential privacy
# lone_neighbor = "refuse"        # "warn": a study may go on where masks hide nothing, as of two sites
# most_epsilon = 0.0              # 0: no differential privacy is demanded
# longest_days = 0                # until a study expires; 0: any number
# accept = "no-worse"             # when a new model is used: "no-worse", "person" or "any"
# tolerance = 0.1                 # of "no-worse"

# the guards of this site's rows: a study may ask for stricter ones only
# least_min_rows = 10
# least_rows_per_feature = 1.5
# most_leverage = 0.999
# most_maps = 64
# least_shortlist_rows = 30.0
# least_sigma = 0.05
# least_colluders = 0             # 0: half of the other sites, rounded up
# most_delta = 0.0                # 0: N^-2 for N rows
"""
SOURCE_TEXT = """
[sources.{name}]
# columns = []                    # the columns that may be used; none listed: all
# never = []                      # columns that may never be used
# least_rows = 0
# runs_per_month = 4              # 0: any number
# total_epsilon = 10.0
# describe = false                # true: an approval has a table of these rows, as dekrr study describe shows it
"""


@app.callback()
def group() -> None:
    """Make the files of a standing site."""


@app.command()
def init(
    site: Annotated[str, typer.Argument(help="The site's name.")],
    neighbor: Annotated[
        list[str],
        typer.Option(help="NAME=HOST:PORT; NAME=relay by the relay; NAME= for one that dials this site."),
    ],
    source: Annotated[list[str], typer.Option(help="NAME=FILE: studies name data sources, not files.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT; left out: this site accepts no connections.")] = "",
    relay: Annotated[str, typer.Option(help="The relay's HOST:PORT.")] = "",
    host: Annotated[str, typer.Option(help="The host in the certificate; by default that of --listen.")] = "",
    out: Annotated[Path, typer.Option(help="The folder to make, or to write to.")] = Path(),
) -> None:
    """Write site.toml, a policy.toml that explains itself, a private key, and the request for a certificate."""
    from .. import keys
    from ..files import read_standing, to_toml
    from ..policy import POLICY

    host = host or listen.rpartition(":")[0].strip("[]")
    if not host:
        raise SettingsError("--host: a site that accepts no connections needs one for its certificate")
    sources = _pairs("--source", source)
    names = {"authority": keys.AUTHORITY_CERTIFICATE, "certificate": keys.CERTIFICATE, "key": keys.KEY}
    table = {"site": site, "listen": listen or None, "relay": relay or None}
    text = to_toml({**table, "neighbors": _pairs("--neighbor", neighbor), "sources": sources, "keys": names})
    out.mkdir(parents=True, exist_ok=True)
    keys.write_new(out / SITE_FILE, text.encode())
    try:
        read_standing(out / SITE_FILE)
    except SettingsError:
        (out / SITE_FILE).unlink()
        raise
    policy = POLICY_TEXT + "".join(SOURCE_TEXT.format(name=name) for name in sources)
    keys.write_new(out / POLICY, policy.encode())
    key, request = keys.new_request(site, host)
    keys.write_new(out / keys.KEY, key, private=True)
    keys.write_new(out / keys.REQUEST, request)
    say(
        f"{out / SITE_FILE} and {out / POLICY} are this site's own. {out / keys.KEY} stays here. Send "
        f"{out / keys.REQUEST} to be signed, put {keys.CERTIFICATE} and {keys.AUTHORITY_CERTIFICATE} beside it, and "
        f"start: dekrr node {out / SITE_FILE}"
    )


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """Return names and values of an option that may be given several times."""
    if wrong := [text for text in given if "=" not in text]:
        raise SettingsError(f"{option}: write NAME=VALUE, not {', '.join(wrong)}")
    return dict(text.split("=", 1) for text in given)
