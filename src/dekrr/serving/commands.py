"""`dekrr serve` and `dekrr export`: predictions for other programs."""

import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..errors import NetworkError, SettingsError


def serve(
    model: Annotated[
        Path,
        typer.Argument(help="A model file, or a folder with versions of a model and a link `current`.", exists=True),
    ],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8080,
    tokens: Annotated[
        Path | None,
        typer.Option(help="A file of tokens, made by dekrr keys token; callers must send one of them.", exists=True),
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="The service's certificate, for TLS.", exists=True)] = None,
    key: Annotated[Path | None, typer.Option(help="The private key of the certificate.", exists=True)] = None,
    authority: Annotated[
        Path | None,
        typer.Option(help="The authority that signs callers' certificates; callers must have one.", exists=True),
    ] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy in front does TLS; tokens may come in the clear.")
    ] = False,
    max_bytes: Annotated[int, typer.Option(min=1, help="The largest body of a request.")] = 16 << 20,
    max_rows: Annotated[int, typer.Option(min=1, help="The most rows in a request.")] = 100_000,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Requests per second of one caller; no limit if left out.")
    ] = None,
    watch: Annotated[
        float, typer.Option(min=0.0, help="Seconds between checks for a newer model; 0 checks only on SIGHUP.")
    ] = 1.0,
    access_log: Annotated[
        bool, typer.Option("--access-log/--no-access-log", help="Log a line for every request, to standard error.")
    ] = True,
) -> None:
    """Serve predictions over HTTP; a newer model takes over without losing a request.

    It listens on 127.0.0.1. For other machines it needs tokens or callers' certificates, and TLS. The page at / says
    how to send requests.
    """
    from .guards import Limits
    from .server import Place, server_of

    place = Place(host, port, tokens, certificate, key, authority, behind_proxy)
    limits = Limits(max_bytes=max_bytes, max_rows=max_rows, rate=rate)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("dekrr.serving.access").setLevel(logging.INFO if access_log else logging.WARNING)
    server = server_of(model, place, limits, watch=watch)
    scheme = "https" if certificate else "http"
    _say(f"{model} on {scheme}://{f'[{host}]' if ':' in host else host}:{port}/ (Ctrl-C ends it)")
    try:
        server.run()
    except SystemExit:  # uvicorn has logged the reason
        raise NetworkError(f"cannot listen on {host}:{port}; is another service using it?") from None
    if not server.started:
        raise NetworkError(f"cannot listen on {host}:{port}; is another service using it?")


def export(
    model: Annotated[Path, typer.Argument(help="A model file.", exists=True, dir_okay=False)],
    out: Annotated[Path, typer.Argument(help="The file to write; its name ends in .onnx.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is already there.")] = False,
) -> None:
    """Write a model as an ONNX graph, which runs without dekrr."""
    from ..model import load
    from .onnx_graph import write_onnx

    if out.suffix != ".onnx":
        raise SettingsError(f"{out} does not end in .onnx; no other format is written")
    if out.exists() and not force:
        raise SettingsError(f"{out} is already there; --force replaces it")
    loaded = load(model)
    write_onnx(loaded, out)
    columns = loaded.header.columns or [f"{loaded.header.n_columns} columns without names"]
    _say(f"{out}: the input rows takes {', '.join(columns)} in this order, as doubles; the output is prediction")


def _say(text: str) -> None:
    Console(highlight=False, soft_wrap=True, stderr=True).print(text, markup=False)
