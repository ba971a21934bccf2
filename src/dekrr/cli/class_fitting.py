"""`dekrr fit` where the target has classes."""

from pathlib import Path
from typing import Any

import numpy as np
import typer

from ..errors import SettingsError, UnusableError
from ..estimators import DeKRRClassifier
from ..estimators.base import keywords_of
from ..tables.columns import raw_of
from ..tables.sources import open_source
from .scoring import Errors, errors_on, frame_of, parts_of

_TUNED = ("sigma", "alpha", "consensus")


def has_words(data: Path, target: str) -> bool:
    """Return whether the first rows of a column are words, which are classes then, and not dates or numbers."""
    for batch in open_source(data).read([target]):
        values = np.asarray(frame_of(batch)[target])
        if values.dtype.kind not in "OUST":
            return False
        try:
            kind = raw_of(values).kind
        except UnusableError:  # numbers with a stray word, for instance, which are refused elsewhere
            return False
        if kind != "empty":
            return kind == "category"
    return False


def fit_classes(
    data: Path, target: list[str], picked: dict[str, Any], share: float, settings: dict[str, Any]
) -> tuple[DeKRRClassifier, Errors | None]:
    """Return a classifier of all rows of a table, and its figures on a held-out share of a fit without these.

    `picked` names the columns of sites, of weights, and to predict from.
    """
    if len(target) > 1:
        raise SettingsError(f"the target has classes, so that there can be one: give --target {target[0]} alone")
    if settings.get("transform") is not None:
        raise SettingsError("classes are no numbers that could be changed for training: leave --transform out")
    settings = {name: value for name, value in settings.items() if name != "transform"}
    if settings["network"] is not None:
        raise SettingsError("classes are fitted in one process: leave --network out")

    def fitted(frame: Any) -> DeKRRClassifier:
        return DeKRRClassifier(**keywords_of(DeKRRClassifier, settings)).fit(frame, target[0], **picked)

    errors, site = None, picked["sites"]
    if share:
        kept, held = (_joined(parts_of(data, site, share, held_out=part)()) for part in (False, True))
        trial = fitted(kept)
        known = held[target[0]].isin(trial.classes_.tolist())
        if not known.all():
            rare = ", ".join(map(str, held[target[0]][~known].unique()[:5]))
            typer.echo(f"note: no error is measured on rows of classes that few rows have: {rare}", err=True)
        models = {model.header.site: model for model in trial.models_.values()}
        errors = errors_on(models, open_source(held[known].reset_index(drop=True)).read(None), target[0], site)
        settings = settings | ({name: getattr(trial, f"{name}_") for name in _TUNED} if trial.tuning_ else {})
        errors = errors if errors.n_rows else None
    every = _joined(frame_of(batch) for batch in open_source(data).read(None))
    return fitted(every), errors


def _joined(frames: Any) -> Any:
    import pandas as pd

    return pd.concat(list(frames), ignore_index=True)
