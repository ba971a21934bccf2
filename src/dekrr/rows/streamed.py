"""Rows that are read in batches from a source, and the rows of the sites of one table.

There are at most two passes over streamed rows: one for their number, their bounds and a sample, and one for the sums.
Where only sums are needed, there is one pass. A table with a column of sites is read once for all sites.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from typing import Any

import numpy as np

from ..errors import DataError
from ..labels import factorise, places_of
from ..types import Block
from .batches import AnyColumns, Batch, block_of, count_of, counted, labels_of, numbers_in
from .rows import Rows, joined
from .sources import Source
from .spool import Spool
from .survey import Survey

_BLOCK_ROWS = 1 << 14


class StreamedRows(Rows):
    """Rows that every pass reads from their source in batches, and checks.

    Parameters
    ----------
    source : Source
    columns : sequence of str, int, or Columns
        The names of the columns, their number where they have no names, or their encoding.
    response : str, sequence of str, or None
        The name of the response's column, or of the column of each output.
    weight : str, optional
        The name of the column of weights.
    seed : int, default=0
        The seed of the sample.
    """

    streamed = True

    def __init__(
        self,
        source: Source,
        columns: AnyColumns,
        response: str | Sequence[str] | None,
        *,
        weight: str | None = None,
        seed: int = 0,
    ) -> None:
        self.source = source
        self.columns = columns
        self.n_columns = count_of(columns)
        self.seed = seed
        self._response = response
        self._weight = weight
        self.weighted = weight is not None
        self._counted: int | None = None
        self._digest: str | None = None

    @property
    def n_rows(self) -> int:
        """The number of rows, as an earlier pass has counted them; if there was none, a survey counts them now."""
        return self.survey.n_rows if self._counted is None else self._counted

    @property
    def digest(self) -> str:
        """The SHA-256 of the numbers in all rows, in their order: the same rows in another kind of file have the same.

        A pass over the source finds it; if there was none yet, one is made now.
        """
        if self._digest is None:
            read = hashlib.sha256()
            for block in self.blocks(_BLOCK_ROWS):
                read.update(numbers_in(block))
            self._digest = read.hexdigest()
        return self._digest

    @property
    def knows_outputs(self) -> bool:
        """Whether the number of outputs is known: the response has a name, or the rows are surveyed."""
        return self._response is not None or "survey" in self.__dict__

    @property
    def n_outputs(self) -> int:
        """The number of outputs; where it is not known yet, the first batch is read."""
        if self._response is None:
            return self.sample.n_outputs if self.knows_outputs else super().n_outputs
        return 1 if isinstance(self._response, str) else len(self._response)

    def blocks(self, size: int) -> Iterator[Block]:
        """Read the rows from their source; rows that are all in the sample are not read again.

        Rows that are not those of an earlier pass raise `DataError`, at the end of the pass.
        """
        if "survey" in self.__dict__ and self.survey.is_whole:
            yield from self.sample.blocks(size)
            return
        counted, read = 0, hashlib.sha256()
        for block in _rechunked(self._read(), size):
            counted += block.n_rows
            read.update(numbers_in(block))
            yield block
        if not counted:
            raise DataError(f"{self.source.name} has no rows")
        if self._counted not in (None, counted):
            raise DataError(
                f"{self.source.name} gave {self._counted} rows in one pass and {counted} in the next: rows that change "
                "while they are read cannot be used"
            )
        if self._digest not in (None, read.hexdigest()):
            raise DataError(
                f"{self.source.name} gave other rows in one pass than in the next: rows that change while they are "
                "read cannot be used. Write a new file and rename it, and start again"
            )
        self._counted, self._digest = counted, read.hexdigest()

    def _read(self) -> Iterator[Block]:
        return (counted(self._block_of(batch)) for batch in self._batches())

    def _batches(self, *more: str) -> Iterator[Batch]:
        """Read the columns of these rows, and the columns `more`."""
        responses = [self._response] if self._response is None or isinstance(self._response, str) else self._response
        return self.source.batches(self.columns, *responses, self._weight, *more)

    def _block_of(self, batch: Batch) -> Block:
        return block_of(batch, self.columns, self._response, self._weight)


class _SiteOfTable(StreamedRows):
    """The rows of one site of a table, which the first pass over the table has left in a spool."""

    def __init__(
        self,
        source: Source,
        columns: AnyColumns,
        response: str | Sequence[str],
        *,
        weight: str | None,
        site_column: str,
        site: Hashable,
        survey: Survey,
        spool: Spool,
        seed: int,
    ) -> None:
        super().__init__(source, columns, response, weight=weight, seed=seed)
        self._site_column = site_column
        self._site = site
        self._spool: Spool | None = spool
        self.survey, self._counted = survey, survey.n_rows

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the temporary file: a copy in another process reads the table again."""
        return {**self.__dict__, "_spool": None}

    def _read(self) -> Iterator[Block]:
        if self._spool is not None:
            yield from self._spool.read(self._site)
            return
        for batch in self._batches(self._site_column):
            yield counted(self._block_of(batch).take(np.asarray(labels_of(batch, self._site_column) == self._site)))


def split_by_site(
    source: Source,
    columns: AnyColumns,
    response: str | Sequence[str],
    site_column: str,
    seed: int,
    weight: str | None = None,
    here: Callable[[Sequence[Hashable]], Set[Hashable]] | None = None,
) -> dict[Hashable, Rows]:
    """Return the rows of every site of one table, from one pass over it.

    The pass surveys all sites. If a site is larger than its sample, its rows go to a temporary file, and its sums are
    later made from that file. Memory holds the samples and one batch. The table is not read again.

    Parameters
    ----------
    source : Source
    columns : sequence of str, or Columns
    response : str, or sequence of str
    site_column : str
    seed : int
        Of the samples.
    weight : str, optional
        The column that has the weight of each row.
    here : callable, optional
        Says which of all sites to read. A first pass, over the column of sites, then finds these. Rows of the other
        sites are not kept.
    """
    labels = _labels_of_table(source, site_column) if here is not None else []
    wanted = None if here is None else here(labels)
    surveys: dict[Hashable, Survey] = defaultdict(lambda: Survey(seed))
    spool = Spool()
    responses = [response] if isinstance(response, str) else response
    for batch, batch_labels, index in _labelled(source, columns, *responses, weight, site_column=site_column):
        if wanted is not None and wanted.isdisjoint(batch_labels):
            continue
        block = block_of(batch, columns, response, weight)
        for label, places in zip(batch_labels, places_of(index, len(batch_labels)), strict=True):
            if wanted is not None and label not in wanted:
                continue
            survey, own = surveys[label], counted(block.take(places))
            if survey.n_rows + own.n_rows > survey.size:
                if label not in spool and survey.n_rows:
                    spool.write(label, survey.sample_so_far())  # all earlier rows of the site
                spool.write(label, own)
            survey.add(own)
    if not surveys and not labels:
        raise DataError(f"{source.name} has no rows")
    for label, survey in surveys.items():
        if not survey.n_rows:
            raise DataError(f"all rows of site {label!r} have weight zero: leave the site out, or give it weights")
    elsewhere = StreamedRows(source, columns, response, seed=seed)
    return {
        label: elsewhere
        if label not in surveys
        else _SiteOfTable(
            source,
            columns,
            response,
            weight=weight,
            site_column=site_column,
            site=label,
            survey=surveys[label],
            spool=spool,
            seed=seed,
        )
        for label in labels or factorise(list(surveys), len(surveys))[0]
    }


def _labelled(
    source: Source, columns: AnyColumns, *more: str | None, site_column: str
) -> Iterator[tuple[Batch, Sequence[Hashable], np.ndarray]]:
    """Yield the batches of a table, the sites of each, and the place of each row's site among them."""
    first_label: Hashable = None
    for batch in source.batches(columns, *more, site_column):
        column = labels_of(batch, site_column)
        try:
            labels, index = factorise(column, len(column))
        except DataError as error:
            raise DataError(f"{batch.where}, column {site_column!r}, after row {batch.start}: {error}") from None
        for label in labels:
            first_label = label if first_label is None else first_label
            if source.guesses_types and isinstance(label, str) != isinstance(first_label, str):
                raise DataError(
                    f"{batch.where}, column {site_column!r}, after row {batch.start}: some site labels are read as "
                    f"numbers and others as words, such as {first_label!r} and {label!r}: make all of them words, or "
                    "use Parquet"
                )
        yield batch, labels, index


def _labels_of_table(source: Source, site_column: str) -> Sequence[Hashable]:
    """Return the sites of a table, from a pass over the column that has them."""
    labels = list(dict.fromkeys(label for _, own, _ in _labelled(source, [], site_column=site_column) for label in own))
    if not labels:
        raise DataError(f"{source.name} has no rows")
    return factorise(labels, len(labels))[0]


def _rechunked(batches: Iterable[Block], size: int) -> Iterator[Block]:
    """Yield blocks of `size` rows from batches of any size; the last block has the remaining rows."""
    waiting: list[Block] = []
    n_waiting = 0
    for batch in batches:
        n_waiting += batch.n_rows
        if n_waiting < size:
            waiting.append(batch.copy())  # the next batch may overwrite this batch's memory
            continue
        rows = joined([*waiting, batch])
        whole = n_waiting - n_waiting % size
        for start in range(0, whole, size):
            yield rows.take(slice(start, start + size))
        waiting, n_waiting = [rows.take(slice(whole, None)).copy()], n_waiting - whole
    if n_waiting:
        yield joined(waiting)
