"""A site's own rows: reading them, which of them may be in sums that leave the site, and which were in earlier ones.

The columns of a table are numbers or, with ``raw = true`` in [data], what tables have: words, dates, missing values.
Sites agree on what raw columns become when the run begins. What is kept on disk about rows must not depend on what they
agree on in a later run. So rows are judged in the encoding that the first run over these columns agreed on.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..classes import codes
from ..disk import replacing
from ..errors import DataError, NotNumbersError
from ..frames import Columns, Facts, read_raw
from ..privacy import admission
from ..privacy.history import History, row_hashes
from ..protocols.columns import agree_on_columns, columns_alone
from ..protocols.shared_part import most_shared
from ..protocols.site import Procedure, Site
from ..rows import ArrayRows, Rows, StreamedRows
from ..rows.batches import Batch, inputs_of, labels_of, require_weights
from ..rows.sources import Source, open_source
from ..rows.spread import SpreadRows, SpreadSource, spread_files
from ..settings import DeKRRSettings
from ..types import Array, Block
from .procedure import refuse_beforehand
from .tables import SiteFile

_ROWS_AT_A_TIME = 1 << 14
_HISTORY = "history-"


def source_of(config: SiteFile, folder: Path) -> Source:
    """Return the site's table; refuse one without the columns of the run."""
    source = _opened(config, folder)
    there = source.columns or []
    missing = [name for name in config.data.used if name not in there]
    if missing:
        raise DataError(f"{source.name} has no columns {', '.join(missing)}; it has {', '.join(there)}")
    return source


def _opened(config: SiteFile, folder: Path) -> Source:
    data = config.data
    if not data.scheduler:
        return open_source(folder / data.file)
    if data.classes:
        raise DataError(
            "Dask workers cannot read classes: leave scheduler out of [data], so that the node reads its file itself"
        )
    return spread_files(data.scheduler, data.file if "://" in data.file else folder / data.file)


def read_rows(config: SiteFile, source: Source, columns: Columns | None = None) -> StreamedRows | SpreadRows:
    """Return a site's rows, which are read in batches or by Dask workers, after a first pass that checks them.

    Parameters
    ----------
    config : SiteFile
    source : Source
    columns : Columns, optional
        What raw columns become.
    """
    data = config.data
    response = data.target if isinstance(data.target, str) else list(data.target)
    # The sample does not depend on the run's seed: runs over the same rows tune on the same ones of them.
    rows: StreamedRows | SpreadRows
    given, weight = columns or data.columns, data.weight or None
    if isinstance(source, SpreadSource):
        rows = SpreadRows(source, given, response, weight=weight, seed=0)
    else:
        kind = StreamedRows if not data.classes else partial(RowsOfClasses, classes=classes_of(config))
        rows = kind(source, given, response, weight=weight, seed=0)
    try:
        _ = rows.survey
    except NotNumbersError as error:
        if data.raw:
            raise
        raise DataError(
            f"{error}. Or write raw = true in [data] of all sites: they then agree on what words, dates and missing "
            "values become"
        ) from None
    return rows


def facts_of(config: SiteFile, source: Source) -> Facts:
    """Return what a site knows of its raw columns, from a pass over its table."""
    names = config.data.columns
    facts = Facts(names)
    for batch in source.batches(names):
        facts.add(read_raw(batch.table, names, batch.where, batch.start), batch.where, batch.start)
    return facts


def open_rows(config: SiteFile, folder: Path) -> StreamedRows | SpreadRows:
    """Return a site's rows, after a first pass that checks them; raw columns as if this were the only site."""
    source = source_of(config, folder)
    return read_rows(config, source, columns_alone(facts_of(config, source)) if config.data.raw else None)


def classes_of(config: SiteFile) -> list[Any]:
    """Return the classes of a run in their order."""
    return sorted(config.data.classes)


class RowsOfClasses(StreamedRows):
    """Rows whose response is a class, which is read as its code.

    Parameters
    ----------
    *given, **more
        As `StreamedRows` has them.
    classes : sequence of str, int, float or bool
        In their order.
    """

    def __init__(self, *given: Any, classes: Sequence[Any], **more: Any) -> None:
        super().__init__(*given, **more)
        self._places = {str(known): place for place, known in enumerate(classes)}
        self._places |= {known: place for place, known in enumerate(classes)}
        self._classes = list(classes)

    @property
    def n_outputs(self) -> int:
        """The number of codes of a class."""
        return 1 if len(self._classes) == 2 else len(self._classes)

    def _block_of(self, batch: Batch) -> Block:
        name = str(self._response)
        labels = labels_of(batch, name).tolist()
        places = [self._places.get(label, self._places.get(str(label), -1)) for label in labels]
        if -1 in places:
            row = places.index(-1)
            raise DataError(
                f"{batch.where}, column {name!r}: row {batch.start + row} has {labels[row]!r}, which is none of the "
                f"classes {', '.join(map(repr, self._classes))} of the run; correct the row, or name the class in "
                "[data]"
            )
        weight = None
        if self._weight is not None:
            weight = inputs_of(batch, [self._weight])[:, 0]
            require_weights(weight, f"{batch.where}, column {self._weight!r}: ", batch.start)
        return Block(inputs_of(batch, self.columns), codes(np.array(places), len(self._classes)), weight)


class Counted(ArrayRows):
    """Rows of which only the number is known."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(np.empty((facts.n_rows, 0)), np.empty(facts.n_rows))


@dataclass(frozen=True, eq=False)
class Unlisted:
    """Tells for each row whether it may be in sums, where those that may not are listed.

    Parameters
    ----------
    withheld : ndarray of uint64
        Keyed hashes of the rows that may not.
    secret : bytes
    """

    withheld: np.ndarray
    secret: bytes

    def __call__(self, X: Array) -> np.ndarray:
        """Return which rows are admitted, shape (n_rows,)."""
        if not len(self.withheld):
            return np.ones(len(X), dtype=bool)
        return ~np.isin(row_hashes(X, self.secret), self.withheld)


class SiteRows:
    """The rows of a site, with what it keeps on disk about them.

    Parameters
    ----------
    config : SiteFile
    folder : Path
        The folder of site.toml.
    kept_in : Path
        The folder of what is kept from run to run.
    secret : bytes
        The site's own.

    Attributes
    ----------
    rows : StreamedRows or SpreadRows
        Raw columns are encoded as if this were the only site.
    """

    def __init__(self, config: SiteFile, folder: Path, kept_in: Path, secret: bytes) -> None:
        self._config = config
        self._kept_in = kept_in
        self._secret = secret
        self._source = source_of(config, folder)
        self._facts = facts_of(config, self._source) if config.data.raw else None
        alone = columns_alone(self._facts) if self._facts is not None else None
        self.rows = read_rows(config, self._source, alone)
        self._named = hashlib.sha256(json.dumps(sorted(config.data.columns)).encode()).hexdigest()[:12]
        self._history = History(kept_in / f"{_HISTORY}{self._named}", secret)
        self._history_of_columns = History(kept_in / f"{_HISTORY}{self._named}" / "columns", secret)
        self._order = np.argsort(config.data.columns)  # what is kept is the same in every order of the columns
        self._columns_path = kept_in / f"columns-{self._named}.json"
        self._admission: admission.Admission | None = None
        if self._facts is None:
            self._admission = self._admits(self.rows)

    @property
    def facts(self) -> Facts | None:
        """What the site knows of its raw columns; None where columns are numbers."""
        return self._facts

    def refuse_beforehand(self, site: Site) -> None:
        """Refuse a run for which the site has too few rows, before it speaks to anybody.

        Which raw rows stand alone is known only when sites have agreed on columns, and is checked then.
        """
        config = self._config
        if self._facts is not None:
            config = msgspec.structs.replace(config, settings={**config.settings, "max_leverage": 1.0})
        refuse_beforehand(config, replace(site, rows=self.rows, admission=self._admission))

    def judge(self, *, repeats: bool) -> Callable[[], None]:
        """Refuse a run that would tell rows, or spend too much, together with earlier ones; return what notes it.

        The first run over raw columns has no earlier ones, and notes its rows when sites have agreed on columns.
        """
        if self._facts is None:
            return self._judge(self._admitted_in_order(), repeats=repeats)
        kept = self._kept_columns()
        if kept is None:
            return lambda: None
        return self._judge(self._admitted_encoded(kept), repeats=repeats)

    def prepared(self, site: Site) -> Procedure[tuple[Site, Columns | None]]:
        """Return the site with its rows as numbers and the rule which of them may be in sums; agree on raw columns.

        Parameters
        ----------
        site : Site
        """
        if self._facts is None:
            return replace(site, rows=self.rows, admission=self._admission), None
        settings = self._config.method_settings()
        counted = replace(site, rows=Counted(self._facts))
        columns = yield from agree_on_columns(counted, self._facts, settings.min_rows)
        kept = self._kept_columns()
        if kept is None:
            kept = Columns(tuple(sorted(columns.columns, key=lambda column: column.name)))
            with replacing(self._columns_path, durable=True) as temporary:
                temporary.write_bytes(msgspec.json.encode(kept))
            self._judge(self._admitted_encoded(kept), repeats=False)()
        rows = read_rows(self._config, self._source, columns)
        return replace(site, rows=rows, admission=self._listed(kept, rows)), columns

    def _kept_columns(self) -> Columns | None:
        if not self._columns_path.exists():
            return None
        try:
            return msgspec.json.decode(self._columns_path.read_bytes(), type=Columns)
        except msgspec.MsgspecError as error:
            raise DataError(
                f"{self._columns_path} says how rows are told apart, and cannot be read: {error}; restore it"
            ) from None

    def _admits(self, rows: Rows) -> admission.Admission | None:
        """Return the rule by which this site's rows are in sums: that of its first run with these columns."""
        limit = self._config.method_settings().max_leverage
        path = self._kept_in / f"admission-{self._named}.safetensors"
        if limit >= 1 and path.exists():
            raise DataError(
                f"{path} has kept rows out of sums since an earlier run; max_leverage=1 would give them away"
            )
        if limit >= 1:
            return None
        sample = rows.sample
        order = self._order if self._facts is None else np.arange(rows.n_columns)
        ordered = ArrayRows(sample.X[:, order], sample.y, expansion=sample.expansion)
        rule = admission.kept(path, partial(admission.learn, ordered, limit), rows.n_columns)
        return replace(rule, order=order)

    def _admitted_in_order(self) -> Iterator[Block]:
        rows = self.rows.admitted(self._admission) if self._admission is not None else self.rows
        return (block._replace(X=block.X[:, self._order]) for block in rows.blocks(_ROWS_AT_A_TIME))

    def _admitted_encoded(self, kept: Columns) -> Iterator[Block]:
        rows = read_rows(self._config, self._source, kept)
        rule = self._admits(rows)
        return (rows.admitted(rule) if rule is not None else rows).blocks(_ROWS_AT_A_TIME)

    def _listed(self, kept: Columns, rows: Rows) -> Unlisted | None:
        """Return the rule for these rows, which are in another encoding than the kept one."""
        first = read_rows(self._config, self._source, kept)
        rule = self._admits(first)
        if rule is None:
            return None
        withheld = [np.empty(0, dtype=np.uint64)]
        for block, same in zip(first.blocks(_ROWS_AT_A_TIME), rows.blocks(_ROWS_AT_A_TIME), strict=True):
            withheld.append(row_hashes(same.X[~rule(block.X)], self._secret))
        return Unlisted(np.unique(np.concatenate(withheld)), self._secret)

    def _judge(self, blocks: Iterator[Block], *, repeats: bool) -> Callable[[], None]:
        settings, run = self._config.method_settings(), self._config.run
        hashes, of_columns = self._history.hashes_of_both(blocks)
        if repeats:
            self._history.refuse_other_rows(run, hashes)
        privacy = settings.privacy if isinstance(settings, DeKRRSettings) else None
        if privacy is not None:
            own = f"{_HISTORY}{self._named}"
            others = [History(path, self._secret) for path in self._kept_in.glob(f"{_HISTORY}*") if path.name != own]
            self._history.refuse_budget(run, privacy.epsilon, privacy.max_epsilon, others)
            return partial(self._history.note, run, hashes, privacy.epsilon)
        n_features = self._config.features().n_features
        if isinstance(settings, DeKRRSettings) and settings.shared is not None:
            limits = len(hashes), self.rows.n_columns, settings.rows_per_feature
            n_features = max(n_features, most_shared(settings.shared, *limits))
        fewest = max(settings.min_rows, math.ceil(settings.rows_per_feature * n_features))
        self._history.refuse_few_differences(hashes, fewest)
        self._history_of_columns.refuse_few_differences(of_columns, fewest)

        def note() -> None:
            self._history.note(run, hashes)
            self._history_of_columns.note(run, of_columns)

        return note
