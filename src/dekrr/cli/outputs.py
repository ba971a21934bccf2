"""Where commands read and write: standard input, what is refused before any work is done, tables in batches."""

import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import typer

from ..disk import replacing
from ..errors import DataError
from ..tables.sources import PARQUET

_TEXT = {".csv": ",", ".tsv": "\t"}
_KINDS = {b"PAR1": ".parquet", b"\x1f\x8b": ".csv.gz"}
STANDARD_INPUT = "standard input"


@contextmanager
def table_at(data: Path) -> Iterator[Path]:
    """Give the file of a table; for "-", a temporary one with what standard input has: CSV, also packed, or Parquet."""
    if str(data) != "-":
        yield data
        return
    with tempfile.TemporaryDirectory() as folder:
        source = sys.stdin.buffer
        start = source.read(4)
        kind = next((kind for mark, kind in _KINDS.items() if start.startswith(mark)), ".csv")
        path = Path(folder) / f"rows{kind}"
        with path.open("wb") as file:
            file.write(start)
            shutil.copyfileobj(source, file)
        try:
            yield path
        except DataError as error:
            raise DataError(str(error).replace(str(path), STANDARD_INPUT)) from None


def require_folder(out: Path) -> None:
    """Make a folder to write to, or refuse one that cannot be written to, before anything is computed."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise DataError(f"{out} cannot be written to ({error.strerror or error}): give another folder") from None


@contextmanager
def not_left_empty(out: Path) -> Iterator[None]:
    """Remove a folder that was made in this context, where what should have filled it fails."""
    there = out.exists()
    try:
        yield
    except BaseException:
        if not there:
            with suppress(OSError):  # it has files, or was not made
                out.rmdir()
        raise


def require_output(out: Path | None, *inputs: Path) -> None:
    """Refuse a file to write whose suffix is not known, whose folder is not there, or that the command reads from."""
    if out is None or (out.exists() and not out.is_file() and not out.is_dir()):
        return  # the terminal, or a pipe or device
    if out.is_dir():
        raise DataError(f"{out} is a folder; give a file, such as {out / 'predicted.csv'}")
    if out.suffix not in (*_TEXT, *PARQUET):
        raise DataError(f"{out} ends in {out.suffix or 'no suffix'!r}: tables are written as .csv, .tsv or .parquet")
    for path in inputs:
        if out.exists() and (os.path.samefile(out, path) or out.resolve().is_relative_to(path.resolve())):
            raise DataError(f"{out} is the file that is read; write to another one")
    if not out.parent.is_dir():
        raise DataError(f"the folder {out.parent} of {out.name} does not exist")


def print_json(value: Any) -> None:
    """Print a value as JSON, which has no NaN and no infinities: null stands for them."""
    typer.echo(json.dumps(_plain(value), indent=1, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    number = value.item() if hasattr(value, "item") else value
    return None if isinstance(number, float) and not math.isfinite(number) else number


@contextmanager
def table_writer(out: Path | None) -> Iterator[Callable[[Any], None]]:
    """Give a function that appends a table to a file, or prints it; what is there stays until all is written."""
    if out is None:
        yield _text_appender(lambda text: typer.echo(text, nl=False), ",")
        return
    is_file = not out.is_symlink() and (out.is_file() or not out.exists())
    with replacing(out, private=False) if is_file else nullcontext(out) as target, ExitStack() as stack:
        if out.suffix in PARQUET:
            yield _parquet_appender(target, stack)
        else:
            write = stack.enter_context(target.open("w", newline="")).write
            yield _text_appender(write, _TEXT.get(out.suffix, ","))


def _text_appender(write: Callable[[str], Any], separator: str) -> Callable[[Any], None]:
    header = iter([True])

    def append(table: Any) -> None:
        write(table.to_csv(index=False, header=next(header, False), sep=separator))

    return append


def _parquet_appender(out: Path, stack: ExitStack) -> Callable[[Any], None]:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    writers: list[Any] = []

    def append(frame: Any) -> None:
        table = pa.Table.from_pandas(frame)
        if not writers:
            writers.append(stack.enter_context(parquet.ParquetWriter(out, table.schema)))
        writers[0].write_table(table.cast(writers[0].schema))

    return append
