"""Where commands write: what is refused before any work is done, and tables that are written in batches."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import typer

from ..disk import replacing
from ..errors import DataError
from ..rows.sources import PARQUET

_TEXT = {".csv": ",", ".tsv": "\t"}


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
    """Refuse a file to write whose suffix is not known, whose folder is not there, or that is read from.

    Parameters
    ----------
    out : Path or None
        None is the terminal.
    *inputs : Path
        Files, and folders, that the command reads.
    """
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
