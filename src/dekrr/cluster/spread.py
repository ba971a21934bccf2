"""The rows of a site that is larger than one machine: the partitions of a Dask DataFrame.

A survey of the rows and the sums over them are map-reduces over partitions, on the scheduler that the user has chosen
(`dask.distributed.Client`). A partition is read and summed by one worker, and does not move. What comes back to this
process is a sample of at most 20,000 rows, and sums. Results are added in the order of partitions, in a tree, so that
they do not depend on which worker has computed what, and how often.
"""

import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..errors import DataError
from ..labels import factorise
from ..scaling import Scaling
from ..tables.rows import SAMPLE_ROWS, Admits, ArrayRows, Rows, Survey, Weighed, joined, sampled
from ..tables.sources import PARQUET, AnyColumns, Batch, SpreadTable, block_of, count_of, files_of, names_of, numbers_in
from ..types import Array, Block

_FAN_IN = 8  # results that are added by one task
_SCHEDULER_SECONDS = 30  # that a scheduler has to answer
_KEYS_STREAM = 2  # makes the keys of the sample independent of other random numbers with the same seed
Sums = TypeVar("Sums")
Step = Callable[[Block], Block]


class SpreadSource(SpreadTable):
    """A Dask DataFrame; its client computes, or the one that the user has chosen."""

    def __init__(self, frame: Any, name: str = "the Dask frame", client: Any = None) -> None:
        super().__init__(name)
        self._frame = frame
        self._client = client

    @property
    def columns(self) -> list[str]:
        return [str(name) for name in self._frame.columns]

    def computed(self, lazy: Any) -> Any:
        return lazy.compute() if self._client is None else self._client.compute(lazy).result()

    def by_site(self, column: str) -> "dict[Hashable, SpreadSource]":
        """Return the rows of each site that a column names; a pass over that column finds the sites.

        Every site passes over all partitions of the frame. Where the files are sorted by site, Dask leaves out those
        that cannot have rows of it.
        """
        if column not in self.columns:
            raise DataError(f"{self.name} has no column {column!r}; it has {', '.join(self.columns)}")
        labels_there = self.computed(self._frame[column].unique())
        if labels_there.isna().any():
            raise DataError(f"{self.name} has rows without a site in column {column!r}: drop them, or name their site")
        labels, _ = factorise(labels_there, len(labels_there))
        return {
            label: SpreadSource(self._frame[self._frame[column] == label], f"{self.name}, site {label!r}")
            for label in labels
        }

    def partitions(self, wanted: Sequence[str] | None) -> list[Any]:
        """Return the partitions with the wanted columns, each to be computed."""
        names = [name for name in self._frame.columns if wanted is None or str(name) in wanted]
        return list(self._frame[names].to_delayed())

    def rows(
        self, columns: AnyColumns, response: str | Sequence[str] | None, *, weight: str | None, seed: int
    ) -> "SpreadRows":
        return SpreadRows(self, columns, response, weight=weight, seed=seed)

    def predicted(self, predict: Callable[[Any], Array], n_outputs: int) -> Any:
        """Return predictions, a Dask series or frame, which a worker computes partition by partition when asked."""
        import pandas as pd

        names = [f"prediction {i}" for i in range(n_outputs)]

        def of_partition(part: Any) -> Any:
            values = predict(part) if len(part) else np.empty((0, n_outputs) if n_outputs > 1 else 0)
            if n_outputs > 1:
                return pd.DataFrame(values, index=part.index, columns=names)
            return pd.Series(values, index=part.index, name="prediction")

        return self._frame.map_partitions(of_partition, meta=of_partition(self._frame._meta))

    def read(self, wanted: Sequence[str] | None) -> Iterator[Batch]:
        """Read one partition after another into this process; surveys and sums do without."""
        start = 0
        for partition in self.partitions(wanted):
            table = self.computed(partition)
            yield Batch(self.name, start, table)
            start += len(table)


def spread_files(scheduler: str, path: str | Path) -> SpreadSource:
    """Return the Parquet files that the workers of a Dask scheduler, such as ``tcp://127.0.0.1:8786``, read.

    They are a file, or a folder of files, which every worker finds by this path; or an address such as
    ``s3://bucket/rows/``.
    """
    try:
        import dask.dataframe
        from dask.distributed import Client
    except ImportError as error:
        raise DataError(
            f"rows on Dask workers need a package that is missing ({error}): pip install 'dekrr[dask]'"
        ) from None
    files: Any = path
    if isinstance(path, Path):
        found = files_of(path)
        if any(file.suffix.lower() not in PARQUET for file in found):
            raise DataError(
                f"{path} is not a Parquet file, and Dask workers read only Parquet: write the rows as Parquet"
            )
        files = [str(file) for file in found]
    try:
        client: Any = Client(scheduler, timeout=_SCHEDULER_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise DataError(
            f"no Dask scheduler answers at {scheduler} within {_SCHEDULER_SECONDS} s ({error}): start it, or correct "
            "the address"
        ) from None
    return SpreadSource(dask.dataframe.read_parquet(files), str(path), client)


class _Passes:
    """What all passes over the same partitions must find again: their digests."""

    def __init__(self) -> None:
        self.digest: str | None = None

    def compare(self, name: str, digests: Sequence[bytes]) -> None:
        """Refuse rows that are not those of an earlier pass."""
        found = hashlib.sha256(b"".join(digests)).hexdigest()
        if self.digest not in (None, found):
            raise DataError(
                f"{name} gave other rows in one pass than in the next: rows that change while they are read cannot be "
                "used. Write new files, and start again"
            )
        self.digest = found


class _Facts(NamedTuple):
    """What a survey has found in some partitions.

    The sample has the rows with the smallest of all keys, which are random; `numbers` are the keys' rows.
    """

    digests: list[bytes]
    n_rows: int
    weights: Weighed
    bounds: Scaling
    keys: Array
    numbers: np.ndarray
    sample: Block


class _KnownSurvey(Survey):
    """A survey that is known already; it has no bounds if a function was applied to the rows."""

    def __init__(self, n_rows: int, weights: Weighed, sample: Block, bounds: Scaling | None = None) -> None:
        self.n_rows, self.weights, self.size = n_rows, weights, SAMPLE_ROWS
        self.sample, self._bounds = sample, bounds

    @property
    def bounds(self) -> Scaling:
        if self._bounds is None:
            raise NotImplementedError("bounds are those of rows before a function is applied to them")
        return self._bounds


class SpreadRows(Rows):
    """Rows in the partitions of a Dask DataFrame; the steps are done to each block when it is read, in this order."""

    streamed = True

    def __init__(
        self,
        source: SpreadSource,
        columns: AnyColumns,
        response: str | Sequence[str] | None,
        *,
        weight: str | None = None,
        seed: int = 0,
        steps: tuple[Step, ...] = (),
    ) -> None:
        if response is None:
            raise DataError("a Dask frame has named columns: say which is the response, as in fit(..., y='power')")
        self.source, self.columns, self.seed = source, columns, seed
        self.n_columns = count_of(columns)
        self.weighted = weight is not None
        self._response: str | Sequence[str] = response
        self._weight = weight
        self._steps = steps
        self._counted: int | None = None
        self._passes = _Passes()

    @property
    def digest(self) -> str:
        """The SHA-256 of the numbers in all partitions, in their order; a survey finds it if no pass was made yet."""
        if self._passes.digest is None:
            _ = self.survey
        return str(self._passes.digest)

    @property
    def n_rows(self) -> int:
        """The number of rows, as an earlier pass has counted them; if there was none, a survey counts them now."""
        return self.survey.n_rows if self._counted is None else self._counted

    @property
    def n_outputs(self) -> int:
        return 1 if isinstance(self._response, str) else len(self._response)

    @cached_property
    def survey(self) -> Survey:
        """The number of rows, their bounds and a sample, from one pass over the partitions."""
        found: _Facts = self._reduced(_look_at, _join, self.seed)
        self._passes.compare(self.source.name, found.digests)
        self._count(found.n_rows)
        chosen = np.argsort(found.keys, kind="stable")[: sampled(found.n_rows)]
        sample = found.sample.take(chosen[np.argsort(found.numbers[chosen], kind="stable")])
        return _KnownSurvey(found.n_rows, found.weights, sample, found.bounds)

    def summed(self, sums: Callable[[Rows], Sums], add: Callable[[Sums, Sums], Sums]) -> Sums:
        """Return the sums over all rows: those of each partition, which a worker computes, added up."""
        if "survey" in self.__dict__ and self.survey.is_whole:
            return sums(self.sample)
        digests, n_rows, total = self._reduced(_sum_up, _add_up, (sums, add))
        self._passes.compare(self.source.name, digests)
        self._count(n_rows)
        everything: Sums = total[0]
        return everything

    def blocks(self, size: int) -> Iterator[Block]:
        digests = []
        for number, partition in enumerate(self._partitions()):
            digest, block = _read(self.source.computed(partition), self._reading(number))
            digests.append(digest)
            yield from ArrayRows(*block).blocks(size)
        self._passes.compare(self.source.name, digests)

    def mapped(self, function: Step) -> Rows:
        mapped = self._with(function)
        mapped._counted = self._counted
        if "survey" in self.__dict__ or self.hash_of is not None:
            sample = self.sample
            block = function(sample.arrays())
            mapped.__dict__["survey"] = _KnownSurvey(self.survey.n_rows, self.survey.weights, block)
            if self.hash_of is not None:  # hashes are those of the rows before
                hashed = ArrayRows(*block, expansion=sample.expansion, hashes=sample.hashes)
                mapped.__dict__["_sample_in_order"] = hashed
        return mapped

    def admitted(self, admits: Admits) -> Rows:
        """Return the rows that may be in sums; see `Rows.admitted`."""
        return self._with(lambda block: block.take(admits(block.X)))

    def _with(self, step: Step) -> "SpreadRows":
        rows = SpreadRows(
            self.source,
            self.columns,
            self._response,
            weight=self._weight,
            seed=self.seed,
            steps=(*self._steps, step),
        )
        rows._passes, rows.hash_of = self._passes, self.hash_of
        return rows

    def _count(self, n_rows: int) -> None:
        if not n_rows:
            raise DataError(f"{self.source.name} has no rows")
        self._counted = n_rows

    def _partitions(self) -> list[Any]:
        names = names_of(self.columns)
        responses = [self._response] if isinstance(self._response, str) else list(self._response)
        more = [*responses, *([] if self._weight is None else [self._weight])]
        return self.source.partitions(None if names is None else [*names, *more])

    def _reading(self, number: int) -> "_Reading":
        where = f"{self.source.name}, partition {number}"
        return _Reading(number, where, self.columns, self._response, self._weight, self._steps)

    def _reduced(self, first: Callable[..., Any], join: Callable[..., Any], extra: Any) -> Any:
        """Return the results of all partitions, joined in their order, a few at a time."""
        from dask.delayed import delayed

        extra = delayed(extra, traverse=False)  # it is sent to a worker once, and not with each partition
        look, unite = delayed(first, pure=False), delayed(join, pure=False)
        level = [look(part, self._reading(number), extra) for number, part in enumerate(self._partitions())]
        while len(level) > 1:
            level = [unite(level[i : i + _FAN_IN], extra) for i in range(0, len(level), _FAN_IN)]
        return self.source.computed(level[0])


class _Reading(NamedTuple):
    """How a worker makes numbers of a partition."""

    number: int
    where: str
    columns: AnyColumns
    response: str | Sequence[str]
    weight: str | None
    steps: tuple[Step, ...]


def _read(table: Any, reading: _Reading) -> tuple[bytes, Block]:
    """Return the digest of a partition's numbers, and its rows after all steps."""
    block = block_of(Batch(reading.where, 0, table), reading.columns, reading.response, reading.weight)
    digest = hashlib.sha256(numbers_in(block)).digest()
    for step in reading.steps:
        block = step(block)
    return digest, block


def _look_at(table: Any, reading: _Reading, seed: int) -> _Facts:
    digest, block = _read(table, reading)
    keys = np.random.default_rng([seed, _KEYS_STREAM, reading.number]).random(block.n_rows)
    kept = np.sort(np.argsort(keys, kind="stable")[:SAMPLE_ROWS])
    width = block.X.shape[1] + (1 if block.y.ndim == 1 else block.y.shape[1])
    bounds = Scaling.of(block.X, block.y) if block.n_rows else Scaling(np.full(width, np.inf), np.full(width, -np.inf))
    numbers = (reading.number << 40) + kept
    sample = block.take(kept).copy()
    weights = Weighed.of(block)
    return _Facts([digest], block.n_rows, weights, bounds, keys[kept], numbers, sample)


def _join(parts: Sequence[_Facts], seed: int) -> _Facts:
    keys, numbers = (np.concatenate([getattr(part, name) for part in parts]) for name in ("keys", "numbers"))
    sample = joined([part.sample for part in parts])
    kept = np.sort(np.argsort(keys, kind="stable")[:SAMPLE_ROWS])
    weights = parts[0].weights
    for part in parts[1:]:
        weights = weights.plus(part.weights)
    return _Facts(
        [digest for part in parts for digest in part.digests],
        sum(part.n_rows for part in parts),
        weights,
        Scaling(np.min([p.bounds.lower for p in parts], axis=0), np.max([p.bounds.upper for p in parts], axis=0)),
        keys[kept],
        numbers[kept],
        sample.take(kept),
    )


_Summed = tuple[list[bytes], int, list[Any]]  # digests of partitions, the number of rows, their sums


def _sum_up(table: Any, reading: _Reading, how: tuple[Any, Any]) -> _Summed:
    digest, block = _read(table, reading)
    return [digest], block.n_rows, [how[0](ArrayRows(*block))] if block.n_rows else []


def _add_up(parts: Sequence[_Summed], how: tuple[Any, Any]) -> _Summed:
    total: list[Any] = []
    for _, _, sums in parts:
        total = [how[1](total[0], sums[0])] if total and sums else total or sums
    return [digest for digests, _, _ in parts for digest in digests], sum(n_rows for _, n_rows, _ in parts), total
