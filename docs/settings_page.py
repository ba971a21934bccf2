"""The page of settings: one table for each subject, made from `dekrr.settings` and the estimators.

docs/pages.py writes the page, docs/reference/settings.md, when the site is built.
"""

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import msgspec

import dekrr
from dekrr.settings import (
    WITH_SHARED,
    AllReduceSettings,
    DeKRRSettings,
    DifferentialPrivacy,
    DKLASettings,
    Entry,
    EstimatorSettings,
    FeatureSettings,
    TuningSettings,
    Wire,
    entries,
)

HEAD = """# Settings

This page lists every setting with its defaults, what it may be, and what it does. *In one process* means
`DeKRRRegressor`, `DeKRRClassifier` and `dekrr fit`. *In a deployment* means the table `[settings]` of network.toml
with `method = "dekrr"`, and studies. What is no parameter of an estimator is an entry of its `options`. A star marks
a setting that the estimators do not take as a parameter: the value is the one that they use. A dash marks a setting
that is not there.

In network.toml, write `true` for `True` and `"none"` for `None`. Objects in the place of names (a Chooser, a Kernel, a
Solver, edges) can be given only to the estimators. Each setting is written once, in `src/dekrr/settings.py`; the
parameters of the estimators, the checks of network.toml and site.toml, the options of `dekrr fit` and this page derive
from there.
"""
SUBJECTS: dict[str, tuple[str, str]] = {
    "The model and its features": (
        "",
        "n_features features kernel sigma mapping shared site_effect local column_scales allocation random_state seed",
    ),
    "Regularisation, agreement and tuning": (
        'A single number is not tuned; from several numbers one is chosen. With a shared part, as by default, `"auto"` '
        "tunes nothing: sigma follows from the spread of the rows, alpha is 1e-4 and consensus 1. Without a shared "
        'part, `"auto"` is a built-in grid.',
        "alpha consensus prediction own_weight folds objective",
    ),
    "Rows, sites and their graph": (
        "In network.toml, `topology` and `n_neighbors` stand at the top, and not in `[settings]`.",
        "scale transform bounds weighted n_sites topology n_neighbors unknown_sites classes exclude",
    ),
    "Rounds": ("", "solver self_penalty tol max_rounds"),
    "What travels": (
        'In network.toml, the last three are one setting, such as `wire = { precision = "single" }`; there, '
        "`wire_precision` is called `precision`.",
        "exchange wire_precision censor_start censor_decay",
    ),
    "What a site refuses and hides": (
        "[Privacy](../privacy.md) says what each of them is for.",
        "min_rows rows_per_feature max_leverage shortlist_rows masks lone_neighbor verify_features max_maps "
        "max_features privacy",
    ),
    "Intervals, progress and what is kept": (
        "",
        "intervals store_rows store_sums deployment verbose callbacks network precision",
    ),
}
PROMISE = """## Differential privacy

`privacy` is `DifferentialPrivacy(epsilon=...)` in Python and `privacy = { epsilon = ... }` in network.toml. The
defaults are the same in both.
"""
BASELINES = """## Baselines

`LocalRegressor` trains each site alone. `AllReduceRegressor`, `DKLARegressor` and `COKERegressor` have one model for
all sites; in a deployment, they are `method = "allreduce"` and `method = "dkla"` (COKE is DKLA with a `censor_start`
above 0). The table has the settings that DeKRR lacks, or that have another default there. An empty cell is the default
of DeKRR, and a dash a setting that is not there.
"""
_WORDS = {"wire_precision": ("precision", Wire), "censor_start": ("", Wire), "censor_decay": ("", Wire)}
_HOMES = (TuningSettings, FeatureSettings, DeKRRSettings)  # a deployment reads the first one that has the setting
_IN_BOTH = ("topology", "n_neighbors")
_OWN_WEIGHT = f"`1/{1 / WITH_SHARED['own_weight']:.0f}` with a shared part, else `{{}}`"


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for title, (text, names) in SUBJECTS.items():
        parts.append(f"## {title}\n\n{_wrapped(text)}{_table(map(_row, names.split()))}")
    parts.append(f"{PROMISE}\n{_promise()}")
    parts.append(f"{BASELINES}\n{_baselines()}")
    return "\n".join(parts)


def names() -> list[str]:
    """Return the settings on the page, without those of the promise and of the baselines alone."""
    return [name for _, words in SUBJECTS.values() for name in words.split()]


def deployed(name: str) -> Entry | None:
    """Return the setting as a deployment of DeKRR reads it."""
    word, home = _WORDS.get(name, (name, None))
    for kind in (home,) if home else _HOMES:
        if (word or name) in entries(kind):
            return entries(kind)[word or name]
    return entries(EstimatorSettings)[name] if name in _IN_BOTH else None


def _parameters(estimator: str) -> dict[str, Any]:
    """Return the parameters of an estimator with their defaults."""
    return {each.name: each.default for each in fields(getattr(dekrr, estimator))}


def _row(name: str) -> list[str]:
    there, here, given = deployed(name), entries(EstimatorSettings).get(name), _parameters("DeKRRRegressor")
    entry = here or there
    assert entry is not None, name
    deployment = _value(there.default) if there else "—"
    process = "—" if name == "seed" else f"{_value(entry.in_process)} *"  # the estimators have random_state
    if name in given:
        process = _value(given[name])
    if name == "own_weight":
        deployment = _OWN_WEIGHT.format(entry.default)
        process = f"{deployment} *"
    may = entry.words()
    if there and here and there.words() != here.words():
        may += f"; in a deployment {there.words()}"
    if entry.setting.objects is not None:
        may += f"; in one process also {entry.setting.objects.words}"
    return [f"`{name}`", process, deployment, may, entry.setting.text]


def _promise() -> str:
    rows = [
        [f"`{name}`", _value(entry.default), entry.words(), entry.setting.text]
        for name, entry in entries(DifferentialPrivacy).items()
    ]
    return _table(rows, ["setting", "default", "what it may be", "what it is"])


def _baselines() -> str:
    ours = _parameters("DeKRRRegressor")
    estimators = ("LocalRegressor", "AllReduceRegressor", "DKLARegressor", "COKERegressor")
    given = {name: _parameters(name) for name in estimators}
    methods: Mapping[str, Mapping[str, Entry]] = {
        f'"{name}" in a deployment': {**entries(FeatureSettings), **entries(kind)}
        for name, kind in (("allreduce", AllReduceSettings), ("dkla", DKLASettings))
    }
    texts = {name: entry for known in methods.values() for name, entry in known.items()}
    rows = []
    for name, entry in texts.items():
        cells = [_other(parameters, name, ours.get(name, msgspec.NODEFAULT)) for parameters in given.values()]
        usual = deployed(name)
        for known in methods.values():
            defaults = {key: value.default for key, value in known.items()}
            cells.append(_other(defaults, name, usual.default if usual else msgspec.NODEFAULT))
        if any("`" in cell for cell in cells):
            text = "as above" if usual is not None and usual.setting.text == entry.setting.text else entry.setting.text
            rows.append([f"`{name}`", *cells, entry.words(), text])
    return _table(rows, ["setting", *estimators, *methods, "what it may be", "what it is"])


def _other(defaults: Mapping[str, Any], name: str, usual: Any) -> str:
    if name not in defaults:
        return "—"
    return "" if defaults[name] == usual else _value(defaults[name])


def _value(default: Any) -> str:
    return "must be given" if default is msgspec.NODEFAULT else f"`{default!r}`"


def _table(rows: Iterable[list[str]], head: list[str] | None = None) -> str:
    head = head or ["setting", "in one process", "in a deployment", "what it may be", "what it is"]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)) + "\n\n" if text else ""
