"""`dekrr network`, `dekrr keys`, `dekrr site`: the files, keys and certificates of a mesh."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from cryptography import x509
from rich.console import Console

from ...disk import filling, replacing
from ...errors import KeysError, SettingsError
from ...synthetic import make_sites
from .. import keys as certificates
from ..config import NetworkFile
from ..files import OWN, differences, read_network, read_site, read_standing, site_file, to_toml
from ..identity import REVOKED, revocation_list
from ..policy import POLICY

network_app = typer.Typer(help="Describe a network of sites and make its keys.", no_args_is_help=True)
site_app = typer.Typer(help="Make the files of a standing site.", no_args_is_help=True)
keys_app = typer.Typer(help="Make this site's private key, or a token for callers.", no_args_is_help=True)
SITES = "sites"
SITE_FILE, NETWORK_FILE = "site.toml", "network.toml"
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
NetworkArgument = Annotated[Path, typer.Argument(help="The network file.", exists=True, dir_okay=False)]


@network_app.command()
def example(
    folder: Annotated[Path, typer.Argument(help="The folder to make.")],
    n_sites: Annotated[int, typer.Option("--sites", min=2, help="How many sites.")] = 10,
    port: Annotated[
        int, typer.Option(help="The port of the first site on 127.0.0.1; the others take the ports after it.")
    ] = 7450,
) -> None:
    """Make up a network to try: stations along a coast with a table of rows for each, and the network file."""
    import pandas as pd

    X, y, labels = make_sites(n_sites=n_sites, rows_per_site=200, random_state=0)
    columns = ["place", *(f"x{i}" for i in range(1, X.shape[1]))]
    told = {"lone_neighbor": "warn"} if n_sites == 2 else {}  # masks hide nothing of two sites
    lines = [
        to_toml({"run": "trial", "method": "dekrr", "topology": "ring", "n_neighbors": 4, "patience": 30.0}),
        to_toml({"data": {"target": "y", "columns": columns}}),
        to_toml({"settings": {"n_features": 30, "sigma": 0.3, "alpha": 1e-4, "consensus": 1.0, **told}}),
    ]
    for j, label in enumerate(sorted(set(labels.tolist()))):
        name = label.replace(" ", "-")
        table = pd.DataFrame(X[labels == label], columns=columns).assign(y=y[labels == label])
        certificates.write_new(folder / f"{name}.csv", table.to_csv(index=False).encode())
        entry = {"name": name, "endpoint": f"127.0.0.1:{port + j}", "data": f"{name}.csv"}
        lines.append("[[site]]\n" + to_toml(entry))
    certificates.write_new(folder / NETWORK_FILE, "\n".join(lines).encode())
    say(f"{n_sites} sites in {folder}. Next: dekrr network init {folder / NETWORK_FILE}")


@network_app.command()
def init(
    network: NetworkArgument,
    out: Annotated[
        Path | None, typer.Option(help="The folder to make; by default `sites` beside the network file.")
    ] = None,
    keys: Annotated[
        bool,
        typer.Option(
            "--keys/--no-keys", help="Make every site's key here, for a trial, or let each site make its own."
        ),
    ] = True,
    update: Annotated[
        bool, typer.Option("--update", help="Write each site.toml again after network.toml has changed; keys are kept.")
    ] = False,
) -> None:
    """Make an authority, and a folder for each site with its site.toml and, for a trial, its key and certificate.

    With --no-keys only the authority's private key is made: each site runs dekrr keys new, and you sign its request.
    """
    described = read_network(network)
    folder = out or network.parent / SITES
    tables = site_tables(described, network.parent.resolve())
    if update:
        _update(tables, folder, keys=keys)
    elif folder.exists() and any(folder.iterdir()):
        raise KeysError(
            f"{folder} is already there; nothing is overwritten: give --update to write the sites' files again and "
            "keep their keys, or give another --out"
        )
    else:
        with filling(folder) as made:
            authority = certificates.Authority.new(described.run)
            authority.save(made)
            for name, table in tables.items():
                _make_home(made / name, table, authority, keys=keys)
    for name, table in tables.items():
        if not Path(table["data"]["file"]).exists():
            say(f"note: {table['data']['file']}, the data of {name}, does not exist yet")
    if keys:
        say(f"{len(described.site)} sites in {folder}, with keys. Next: dekrr up {network}")
    else:
        say(
            f"{len(described.site)} sites in {folder}, without keys. Give each its folder, have it run dekrr keys new, "
            f"and sign its request: dekrr network sign {network} REQUEST"
        )


def _make_home(home: Path, table: Mapping[str, Any], authority: certificates.Authority, *, keys: bool) -> None:
    """Make a site's folder."""
    certificates.write_new(home / SITE_FILE, to_toml(table).encode())
    certificates.write_new(home / certificates.AUTHORITY_CERTIFICATE, authority.pem)
    if keys:
        key, request = certificates.new_request(table["site"], _host(table["listen"]))
        certificates.write_new(home / certificates.KEY, key, private=True)
        certificates.write_new(home / certificates.REQUEST, request)
        signed = authority.sign(certificates.read_request(home / certificates.REQUEST))
        certificates.write_new(home / certificates.CERTIFICATE, signed)


def _update(tables: Mapping[str, Mapping[str, Any]], folder: Path, *, keys: bool) -> None:
    """Write the files of sites anew. Keys, models, records and what a site decides for itself stay as they are."""
    authority = certificates.Authority.load(folder)
    n_same = 0
    for name, table in tables.items():
        home = folder / name
        if not home.exists():
            with filling(home) as made:
                _make_home(made, table, authority, keys=keys)
            say(f"{name} is new")
            continue
        changes = differences(read_site(home / SITE_FILE), site_file(table))
        if changes:
            own = tomllib.loads((home / SITE_FILE).read_text(encoding="utf-8"))
            kept = {key: own[key] for key in OWN if key in own}
            kept["data"] = {**table["data"], "scheduler": own["data"].get("scheduler", "")}
            with replacing(home / SITE_FILE, private=False, durable=True) as temporary:
                temporary.write_text(to_toml({**table, **kept}), encoding="utf-8")
            say(f"{name}: {'; '.join(changes)}: written again")
        n_same += not changes
        _renew(home, table, authority)
    if n_same:
        say(f"{n_same} of {len(tables)} files are as they were")
    for path in sorted(folder.glob(f"*/{SITE_FILE}")):
        if path.parent.name not in tables:
            say(f"note: {path.parent} no longer belongs to a site of the network file; it is left as it is")


def _renew(home: Path, table: Mapping[str, Any], authority: certificates.Authority) -> None:
    """Sign a certificate for the key of a site whose host has changed, where the key is here."""
    host, path = _host(table["listen"]), home / certificates.CERTIFICATE
    if not path.exists() or certificates.host_of(certificates.read_certificate(path)) == host:
        return
    if not (home / certificates.KEY).exists():
        say(f"note: {path} is for a host other than {host}: have the site run dekrr keys new, and sign its request")
        return
    _, request = certificates.new_request(table["site"], host, home / certificates.KEY)
    with replacing(home / certificates.REQUEST, private=False) as temporary:
        temporary.write_bytes(request)
    with replacing(path, private=False, durable=True) as temporary:
        temporary.write_bytes(authority.sign(certificates.read_request(home / certificates.REQUEST)))
    say(f"{table['site']} has a new certificate, for the same key, at {host}")


@network_app.command()
def sign(
    network: NetworkArgument,
    request: Annotated[Path, typer.Argument(help="The request that dekrr keys new made.", exists=True)],
    authority: Annotated[
        Path | None, typer.Option(help="The authority's folder; by default `sites` beside the network file.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long the certificate is valid.")] = 365,
    out: Annotated[Path | None, typer.Option(help="The file to write, for instance for a renewal.")] = None,
) -> None:
    """Sign a site's request: its name must be a site of the network, and its host the one that neighbours dial."""
    described = read_network(network)
    folder = authority or network.parent / SITES
    asked = certificates.read_request(request)
    name, host = certificates.site_of(asked), certificates.host_of(asked)
    hosts = {entry.name: _host(entry.endpoint) for entry in described.site}
    if name not in hosts:
        raise KeysError(f"{request} is for {name!r}, which is not a site of {network}; they are {', '.join(hosts)}")
    if host != hosts[name]:
        raise KeysError(f"{request} is for host {host!r}, but {network} has {name!r} at {hosts[name]!r}")
    signed = certificates.Authority.load(folder).sign(asked, days)
    path = out or folder / name / certificates.CERTIFICATE
    certificates.write_new(path, signed)
    say(f"{path} is the certificate of {name}, valid for {days} days; send it back with {folder / name}")


@network_app.command()
def revoke(
    network: NetworkArgument,
    certificate: Annotated[Path, typer.Argument(help="The certificate to revoke.", exists=True)],
    authority: Annotated[
        Path | None, typer.Option(help="The authority's folder; by default `sites` beside the network file.")
    ] = None,
) -> None:
    """Add a certificate to the authority's list of revoked ones; dekrr study revoke passes the list on to all sites."""
    folder = authority or network.parent / SITES
    path = folder / REVOKED
    before = x509.load_pem_x509_crl(path.read_bytes()) if path.exists() else None
    revoked = certificates.read_certificate(certificate)
    with replacing(path, private=False, durable=True) as temporary:
        temporary.write_bytes(revocation_list(certificates.Authority.load(folder), [revoked], before))
    say(
        f"{path} lists the certificate of {certificates.site_of(revoked)} as revoked. Next, at a site: dekrr study "
        f"revoke {path}"
    )


@keys_app.command("new")
def new_keys(
    site: Annotated[str, typer.Argument(help="The site's name in the network file.")],
    host: Annotated[str, typer.Option(help="The host name or address that neighbours dial.")],
    out: Annotated[Path, typer.Option(help="The folder for the key and the request.")] = Path(),
) -> None:
    """Make a private key, and a certificate request to send to the network's authority."""
    key, request = certificates.new_request(site, host)
    certificates.write_new(out / certificates.KEY, key, private=True)
    certificates.write_new(out / certificates.REQUEST, request)
    say(f"{out / certificates.KEY} stays here. Send {out / certificates.REQUEST} to be signed.")


@keys_app.command("token")
def new_token(
    name: Annotated[str, typer.Argument(help="Who gets the token.")],
    file: Annotated[Path, typer.Option(help="The file of tokens for dekrr serve; it keeps only hashes.")],
) -> None:
    """Make a token for callers of dekrr serve, and print it once. To withdraw it, remove its line from the file."""
    from ...serving.guards import new_token

    typer.echo(new_token(file, name))


@site_app.callback()
def group() -> None:
    """Make the files of a standing site."""


@site_app.command("init")
def init_site(
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
    host = host or _host(listen)
    if not host:
        raise SettingsError("--host: a site that accepts no connections needs one for its certificate")
    sources = _pairs("--source", source)
    names = {
        "authority": certificates.AUTHORITY_CERTIFICATE,
        "certificate": certificates.CERTIFICATE,
        "key": certificates.KEY,
    }
    table = {"site": site, "listen": listen or None, "relay": relay or None}
    text = to_toml({**table, "neighbors": _pairs("--neighbor", neighbor), "sources": sources, "keys": names})
    out.mkdir(parents=True, exist_ok=True)
    certificates.write_new(out / SITE_FILE, text.encode())
    try:
        read_standing(out / SITE_FILE)
    except SettingsError:
        (out / SITE_FILE).unlink()
        raise
    policy = POLICY_TEXT + "".join(SOURCE_TEXT.format(name=name) for name in sources)
    certificates.write_new(out / POLICY, policy.encode())
    key, request = certificates.new_request(site, host)
    certificates.write_new(out / certificates.KEY, key, private=True)
    certificates.write_new(out / certificates.REQUEST, request)
    needed = f"{certificates.CERTIFICATE} and {certificates.AUTHORITY_CERTIFICATE}"
    say(
        f"{out / SITE_FILE} and {out / POLICY} are this site's own. {out / certificates.KEY} stays here. Send "
        f"{out / certificates.REQUEST} to be signed, put {needed} beside it, and start: dekrr node {out / SITE_FILE}"
    )


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """Return names and values of an option that may be given several times."""
    if wrong := [text for text in given if "=" not in text]:
        raise SettingsError(f"{option}: write NAME=VALUE, not {', '.join(wrong)}")
    return dict(text.split("=", 1) for text in given)


def site_tables(network: NetworkFile, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the contents of every site's site.toml, as tables."""
    endpoints = {entry.name: entry.endpoint for entry in network.site}
    graph = network.neighbors()
    tables: dict[str, dict[str, Any]] = {}
    for entry in network.site:
        tables[entry.name] = {
            "run": network.run,
            "site": entry.name,
            "method": network.method,
            "listen": entry.endpoint,
            "sites": [other.name for other in network.site],
            "patience": network.patience,
            "start_patience": network.start_patience,
            "data": {**msgspec.to_builtins(network.data), "file": str(folder / entry.data)},
            "settings": network.settings,
            "neighbors": {p: endpoints[p] for p in graph[entry.name]},
            "keys": {
                "authority": certificates.AUTHORITY_CERTIFICATE,
                "certificate": certificates.CERTIFICATE,
                "key": certificates.KEY,
            },
        }
    return tables


def _host(endpoint: str) -> str:
    return endpoint.rpartition(":")[0].strip("[]")


def say(text: str) -> None:
    """Print a line as it is."""
    Console(highlight=False, soft_wrap=True).print(text, markup=False)
