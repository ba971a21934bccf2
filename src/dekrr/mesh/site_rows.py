"""A site's own rows: reading them, which of them may be in sums that leave the site, and which were in earlier ones.

The columns of a table are numbers or, with ``raw = true`` in [data], what tables have: words, dates, missing values.
Sites agree on what raw columns become when the run begins. What is kept on disk about rows must not depend on what they
agree on in a later run. So rows are judged in the encoding that the first run over these columns agreed on.
"""

import hashlib
import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..classes import codes
from ..cluster.spread import SpreadRows, SpreadSource, spread_files
from ..disk import replacing
from ..errors import DataError, NotNumbersError
from ..privacy import admission
from ..privacy.masks import derived_secret
from ..privacy.mechanism import delta_of
from ..privacy.odometer import row_hashes
from ..protocols.preparation import agree_on_columns, columns_alone
from ..protocols.shared_part import most_shared
from ..protocols.site import FOLDS, Procedure, Site
from ..settings import DeKRRSettings
from ..tables.columns import Columns, Facts, arrays_of, read_raw
from ..tables.rows import ArrayRows, HashOf, RowHash, Rows
from ..tables.sources import Batch, Source, StreamedRows, column_of, hint_of, inputs_of, open_source, require_weights
from ..types import Array, Block
from .config import SiteFile
from .ledger import Ask, Cells, Folder, Ledger
from .procedure import refuse_beforehand

logger = logging.getLogger("dekrr")
_ROWS_AT_A_TIME = 1 << 14
LEDGER = "ledger"
_MANY_RARE = 0.05  # of the rows, from which the site is told that they are in no sum
_MOST_DELTA = 0.1  # of all runs together, times the number of rows


def source_of(config: SiteFile, folder: Path) -> Source:
    """Return the site's table; refuse one without the columns of the run."""
    source = _opened(config, folder)
    there = source.columns or []
    missing = [name for name in config.data.used if name not in there]
    if missing:
        raise DataError(
            f"{source.name} has no columns {', '.join(missing)}; it has {', '.join(there)}{hint_of(there)}"
        ).about(missing[0], "column-missing")
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
    """Return a site's rows, which are read in batches or by Dask workers, after a first pass that checks them."""
    data = config.data
    response = data.target if isinstance(data.target, str) else list(data.target)
    # The sample does not depend on the run's seed: runs over the same rows tune on the same ones of them.
    rows: StreamedRows | SpreadRows
    given, weight = columns or data.columns, data.weight or None
    if isinstance(source, SpreadSource):
        rows = SpreadRows(source, given, response, weight=weight, seed=0)
    else:
        fewest = int(config.method_settings().min_rows) if _withholds(config) else 1
        of_classes = partial(RowsOfClasses, classes=classes_of(config), fewest=fewest)
        kind = of_classes if data.classes else StreamedRows
        rows = kind(source, given, response, weight=weight, seed=0)
    try:
        _ = rows.survey
    except NotNumbersError as error:
        if data.raw:
            raise
        raise DataError(
            f"{error}. Or write raw = true in [data] of all sites: they then agree on what words, dates and missing "
            "values become"
        ).about(error.column, error.code) from None
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


def _withholds(config: SiteFile) -> bool:
    """Return whether rows can be kept out of sums: with differential privacy all are in them."""
    settings = config.method_settings()
    return bool(settings.max_leverage < 1 and getattr(settings, "privacy", None) is None)


class RowsOfClasses(StreamedRows):
    """Rows whose response is a class, which is read as its code.

    A study names the classes, so whether it is refused would tell whether a single row has another one. So fewer than
    `fewest` rows of no named class are read as having the commonest one. They are `unnamed`: for who withholds them.

    `*given`, `**more`: as `StreamedRows` has them. `classes`: in their order.
    """

    def __init__(self, *given: Any, classes: Sequence[Any], fewest: int, **more: Any) -> None:
        super().__init__(*given, **more)
        self._places = {str(known): place for place, known in enumerate(classes)}
        self._places |= {known: place for place, known in enumerate(classes)}
        self._classes = list(classes)
        name, first, read = str(self._response), "", [np.empty(0, dtype=int)]
        for batch in self.source.batches([name]):
            labels, places = self._read_classes(batch)
            if not first and (places < 0).any():
                row = int(np.argmin(places))
                first = f"{batch.where}, column {name!r}: row {batch.start + row} has {labels[row]!r}"
            read.append(places)
        places = np.concatenate(read)
        self.unnamed: np.ndarray = places < 0
        self._commonest = int(np.bincount(places[~self.unnamed], minlength=len(classes)).argmax())
        self.told = ""  # what the site's own people should know
        if first:
            of_classes = f"which is none of the classes {', '.join(map(repr, self._classes))} of the run"
            n_rows = int(self.unnamed.sum())
            self.told = f"{first}, {of_classes}; {n_rows} such rows, fewer than {fewest}, are in no sum"
            if n_rows >= fewest:
                raise DataError(f"{first}, {of_classes}; correct the row, or name the class in [data]").about(
                    name, "classes"
                )

    def _read_classes(self, batch: Batch) -> tuple[list[Any], np.ndarray]:
        """Return the labels of a batch, and their places among the classes; -1 for a label that is none of them."""
        labels = column_of(batch, str(self._response)).tolist()
        places = [self._places.get(label, self._places.get(str(label), -1)) for label in labels]
        return labels, np.array(places, dtype=int)

    @property
    def n_outputs(self) -> int:
        """The number of codes of a class."""
        return 1 if len(self._classes) == 2 else len(self._classes)

    def _block_of(self, batch: Batch) -> Block:
        places = self._read_classes(batch)[1]
        places = np.where(places < 0, self._commonest, places)
        weight = None
        if self._weight is not None:
            weight = inputs_of(batch, [self._weight])[:, 0]
            require_weights(weight, f"{batch.where}, column {self._weight!r}: ", batch.start)
        return Block(inputs_of(batch, self.columns), codes(places, len(self._classes)), weight)


def fewest_of(config: SiteFile, n_rows: int, n_columns: int) -> int:
    """Return how many rows the sums of a run and of another may differ by, at least.

    Sums over all rows but a fold, and those over all rows, differ by a fold. So do those of the rows that are new in a
    run: where features are in the sums of both, a fold of the new rows needs as many rows as the features ask for.
    """
    settings, n_features = config.method_settings(), config.features().n_features
    per_feature = settings.rows_per_feature

    def rows(features: int, folds: int = 1, per_feature: float = per_feature) -> int:
        return folds * max(int(settings.min_rows), math.ceil(per_feature * features))

    found = [rows(n_features)]
    if not isinstance(settings, DeKRRSettings):
        return found[0]
    tuning = config.tuning()
    if tuning is not None:
        found.append(rows(n_features, tuning.folds))
    if settings.intervals or config.data.classes:
        found.append(rows(n_features, FOLDS))
    if settings.shared is not None or settings.column_scales == "auto":
        wanted = "auto" if settings.shared is None else settings.shared
        found.append(rows(most_shared(wanted, n_rows, n_columns, per_feature)))
        found.append(rows(n_columns + 1, FOLDS, 2 * per_feature))  # a constant and the columns are in all of them
    return max(found)


def fewest_of_target(config: SiteFile, n_rows: int, n_columns: int) -> int:
    """Return how many rows must have a value of a target of few values.

    A sum of products with it is, for each feature, a sum over the rows of one value. These rows have to be more numbers
    than there are features, by as much as rows must be more than features elsewhere, or they can be solved for.
    """
    settings, n_features = config.method_settings(), config.features().n_features
    per_feature = float(settings.rows_per_feature)
    if isinstance(settings, DeKRRSettings) and settings.shared is not None:
        n_features = max(n_features, most_shared(settings.shared, n_rows, n_columns, per_feature))
    return max(int(settings.min_rows), math.ceil(per_feature * n_features / len(config.data.columns)))


def row_hash(secret: bytes, columns: Sequence[str]) -> RowHash:
    """Return the hash that a site's folds are made by, with the columns in the order of their names."""
    return RowHash(derived_secret(secret, "folds"), tuple(np.argsort(columns).tolist()))


class Counted(ArrayRows):
    """Rows of which only the number is known, in multiples of `fewest`: how many are withheld later is not told."""

    def __init__(self, facts: Facts, fewest: int) -> None:
        n_rows = facts.n_rows // fewest * fewest
        super().__init__(np.empty((n_rows, 0)), np.empty(n_rows))


@dataclass(frozen=True, eq=False)
class Unlisted:
    """Tells for each row whether it may be in sums, where those that may not are listed."""

    withheld: np.ndarray  # keyed hashes of the rows that may not
    secret: bytes
    rule: admission.AnyAdmission | None = None  # rows that it does not admit may not, either

    def __call__(self, X: Array) -> np.ndarray:
        """Return which rows are admitted, shape (n_rows,)."""
        admitted = np.ones(len(X), dtype=bool) if self.rule is None else self.rule(X)
        return admitted & ~np.isin(row_hashes(X, self.secret), self.withheld) if len(self.withheld) else admitted


@dataclass(frozen=True, eq=False)
class HashInFirstEncoding:
    """Hashes rows as they were encoded in the first run, where sites have agreed on another encoding since."""

    known: np.ndarray  # the hashes of all rows in the encoding of this run, sorted
    first: np.ndarray  # those of the same rows in the first one
    hash_of: HashOf  # of the encoding of this run

    def __call__(self, block: Block) -> np.ndarray:
        """Return the hash of each row, shape (n_rows,)."""
        return np.asarray(self.first[np.searchsorted(self.known, self.hash_of(block))])


class SiteRows:
    """The rows of a site, with what it keeps on disk about them.

    - `folder`: the folder of site.toml
    - `kept_in`: the folder of what is kept from run to run
    - `secret`: the site's own
    - `total_epsilon`: what runs may spend together, beside the run's own `max_epsilon`
    - `rules`: called with the number of rows and the times of earlier runs over them; raises an error if the site
      refuses
    - `rows`: raw columns are encoded as if this were the only site
    """

    def __init__(
        self,
        config: SiteFile,
        folder: Path,
        kept_in: Path,
        secret: bytes,
        total_epsilon: float = math.inf,
        rules: Callable[[int, list[float]], None] | None = None,
    ) -> None:
        self._config = config
        self._total_epsilon = total_epsilon
        self._rules = rules
        self._kept_in = kept_in
        self._secret = secret
        self._source = source_of(config, folder)
        self._facts = facts_of(config, self._source) if config.data.raw else None
        alone = columns_alone(self._facts) if self._facts is not None else None
        self.rows = read_rows(config, self._source, alone)
        self._named = hashlib.sha256(json.dumps(sorted(config.data.columns)).encode()).hexdigest()[:12]
        self._order = np.argsort(config.data.columns)  # what is kept is the same in every order of the columns
        self._hash_of = row_hash(secret, config.data.columns)
        self._columns_path = kept_in / f"columns-{self._named}.json"
        self._shelf = Folder(kept_in / LEDGER)
        self.ledger = Ledger(self._shelf)
        self._cells = self._read_cells()
        weight = config.data.weight
        self._weights = self._cells.words[weight].view(np.float64) if weight else None
        self._counts = np.ones(self._cells.n_rows, dtype=bool) if self._weights is None else self._weights > 0
        self._known = self.ledger.withheld(self._cells)
        if isinstance(self.rows, RowsOfClasses) and self.rows.told:
            logger.warning("%s: %s", config.site, self.rows.told)
            self._known |= self.rows.unnamed
        if _withholds(config):
            settings = config.method_settings()
            words, fewest = self._cells.words, int(settings.min_rows)
            needs = dict.fromkeys([*config.data.columns, *([weight] if weight else [])], fewest)
            of_target = fewest_of_target(config, int(self._counts.sum()), self.rows.n_columns)
            needs |= dict.fromkeys(config.data.targets, of_target)
            columns = [words[name] for name in needs]
            rare = admission.rare_values(columns, self._counts & ~self._known, list(needs.values()))
            if rare.sum() > _MANY_RARE * len(rare):
                logger.warning(
                    "%s: %d of %d rows are in no sum: they have a value that few rows have, fewer than %d of a column, "
                    "or than %d of a target; with fewer features (n_features, shared) fewer of a target are enough",
                    *(config.site, rare.sum(), len(rare), fewest, of_target),
                )
            self._known |= rare
        self._admission: admission.AnyAdmission | None = None
        self._alone = self._known
        if self._facts is None:
            X = np.column_stack([self._cells.words[name].view(np.float64) for name in config.data.columns])
            rule: admission.AnyAdmission | None = self._admits(self.rows)
            if self._known.any():
                rule = Unlisted(np.unique(row_hashes(X[self._known], secret)), secret, rule)
            self._admission = rule
            self._alone = ~rule(X) if rule is not None else np.zeros(len(X), dtype=bool)

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

    def judge(self, *, repeats: bool = False) -> None:
        """Refuse a run that would tell rows, or spend too much, together with earlier ones.

        `repeats`: whether the run has a model already, and makes it again.
        """
        ask, inside = self._ask(), self._counts & ~self._alone
        if repeats:
            self.ledger.refuse_other_rows(ask, self._cells, inside)
        self._check(ask)
        self.ledger.judge(ask, self._cells, inside, self._weights)

    def enter(self) -> None:
        """Judge the run again and note it, before anything of its rows leaves; one run of a site at a time does so.

        Which rows of raw columns stand alone is known when sites have agreed on columns, and is noted then.
        """
        if self._facts is None:
            self._enter()

    def _enter(self) -> None:
        ask = self._ask()
        inside, check = self._counts & ~self._alone, partial(self._check, ask)
        self.ledger.enter(ask, self._cells, inside, self._weights, alone=self._alone, check=check)

    def _check(self, ask: Ask) -> None:
        """Refuse a run that spends too much, or that the site's own rules refuse."""
        settings, n_rows = self._config.method_settings(), int(self._counts.sum())
        if isinstance(settings, DeKRRSettings) and settings.privacy is not None:
            most = min(settings.privacy.max_epsilon, self._total_epsilon)
            self.ledger.refuse_budget(ask, most, _MOST_DELTA / max(n_rows, 1))
        if self._rules is not None:
            times = {entry.run: entry.time for entry in self.ledger.entries if entry.run != ask.run}
            self._rules(n_rows, list(times.values()))

    def _ask(self) -> Ask:
        config, settings = self._config, self._config.method_settings()
        privacy = settings.privacy if isinstance(settings, DeKRRSettings) else None
        n_rows = int(self._counts.sum())
        return Ask(
            run=config.run,
            columns=config.data.columns,
            targets=config.data.targets,
            fewest=fewest_of(config, n_rows, self.rows.n_columns),
            weight=config.data.weight,
            epsilon=None if privacy is None else privacy.epsilon,
            delta=None if privacy is None else delta_of(privacy, n_rows),
            about=config.terms("", config.sites),
        )

    def _read_cells(self) -> Cells:
        """Return all cells of the table, those of columns that the run does not use too."""
        names = self._source.columns or []
        return Cells.joined(
            [
                Cells.of(dict(zip(names, arrays_of(batch.table, names), strict=True)), self._secret)
                for batch in self._source.batches(names)
            ]
        )

    def prepared(self, site: Site) -> Procedure[tuple[Site, Columns | None]]:
        """Return the site with its rows as numbers and the rule which of them may be in sums; agree on raw columns."""
        if self._facts is None:
            return replace(site, rows=self.rows, admission=self._admission, hash_of=self._hash_of), None
        settings = self._config.method_settings()
        counted = replace(site, rows=Counted(self._facts, int(settings.min_rows)))
        columns = yield from agree_on_columns(counted, self._facts, settings.min_rows)
        with self._shelf.alone():  # of two first runs at once, the columns of one are kept
            kept = self._kept_columns()
            if kept is None:
                kept = Columns(tuple(sorted(columns.columns, key=lambda column: column.name)))
                with replacing(self._columns_path, durable=True) as temporary:
                    temporary.write_bytes(msgspec.json.encode(kept))
        listed = self._listed(kept, columns)
        self._enter()
        rows = read_rows(self._config, self._source, columns)
        return replace(site, rows=rows, admission=listed, hash_of=self._hash_in(kept, rows)), columns

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

    def _listed(self, kept: Columns, columns: Columns) -> Unlisted | None:
        """Return the rule for rows that are encoded by `columns`; they stand alone, or not, as `kept` has them."""
        rule = self._admits(read_rows(self._config, self._source, kept))
        if rule is None and not self._known.any() and not _withholds(self._config):
            return None
        encoded, alone = [], [np.empty(0, dtype=bool)]
        for batch in self._source.batches(self._config.data.columns):
            encoded.append(inputs_of(batch, columns))
            alone.append(np.zeros(len(encoded[-1]), dtype=bool) if rule is None else ~rule(inputs_of(batch, kept)))
        X, out = np.concatenate(encoded), self._known | np.concatenate(alone)
        if _withholds(self._config):
            fewest = [int(self._config.method_settings().min_rows)]
            out = out | admission.rare_values(columns.indicated(X), self._counts & ~out, fewest)
        self._alone = out
        return Unlisted(np.unique(row_hashes(X[out], self._secret)), self._secret)

    def _hash_in(self, kept: Columns, rows: Rows) -> HashInFirstEncoding:
        """Return the hash by which these rows, which may be in another encoding than the kept one, have their folds."""
        hash_of = replace(self._hash_of, order=None)
        then = read_rows(self._config, self._source, kept)
        known, first = (
            np.concatenate([hash_of(block) for block in each.blocks(_ROWS_AT_A_TIME)]) for each in (rows, then)
        )
        order = np.lexsort((first, known))  # rows that are equal now, and were not then, go with the first of them
        return HashInFirstEncoding(known[order], first[order], hash_of)
