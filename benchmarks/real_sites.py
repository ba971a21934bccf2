"""Tables with real sites, as they come: the default beside what a site has alone, and what a centre would do.

python benchmarks/real_sites.py --data-dir DIR [--seeds 3] [--only NAME ...] [--again] [--table]

DIR/sites has the tables: parquet files with the columns `site` and `target`, the others raw. A quarter of the rows is
for test, by the seed; at most 8,000 rows of a table with fewer than 60 sites are used; sites with fewer than 5 training
rows are left out. Figures are own RSE; of classes the Brier score over the variance of the class. The yardsticks get
what dekrr gets: pooled trees have the site as a category, pooled ridge an intercept for each site, and the linear mixed
model a random one (statsmodels, of the extra `bench`; left out where it is not installed). Trees are LightGBM's
(learning rate .1), with 31 or 63 leaves and as many as three folds of the training rows ask for, up to 1,000. Results
are added to results/real_sites.json, seed by seed; a second run goes on where the first was stopped.
"""

import argparse
import importlib.util
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from sklearn.linear_model import RidgeCV

from dekrr import DeKRRClassifier, DeKRRRegressor

RESULTS = Path(__file__).parent / "results" / "real_sites.json"
CLASSES = {"weather_aus_rain": "Yes", "heart_hospitals": 1}
LOGARITHM = {"airbnb_cities", "kc_house_zips"}  # prices
MOST_ROWS, FEW_SITES, FEWEST_ROWS = 8000, 60, 5
METHODS = (
    "own",
    "union",
    "mean alone",
    "ridge alone",
    "trees alone",
    "pooled ridge",
    "pooled mixed model",
    "pooled trees",
)


def read(path: Path, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return a table and which of its rows are for test."""
    rng, table = np.random.default_rng(seed), pd.read_parquet(path)
    if len(table) > MOST_ROWS and table.site.nunique() < FEW_SITES:
        table = table.iloc[np.sort(rng.permutation(len(table))[:MOST_ROWS])].reset_index(drop=True)
    if path.stem in LOGARITHM:
        table["target"] = np.log1p(table.target)
    if path.stem in CLASSES:
        table["target"] = np.where(table.target == CLASSES[path.stem], "yes", "no")
    is_test = rng.random(len(table)) < 0.25
    counts = table.site.map(pd.Series(~is_test).groupby(table.site.to_numpy()).sum())
    kept = (counts >= FEWEST_ROWS).to_numpy()
    return table[kept].reset_index(drop=True), is_test[kept]


def numbers(columns: pd.DataFrame) -> np.ndarray:
    """Return columns as an analyst would give them to trees: words as codes, dates as days, gaps kept."""
    found = []
    for name in columns:
        values = columns[name]
        if pd.api.types.is_numeric_dtype(values):
            found.append(values.to_numpy(float))
            continue
        dates = pd.to_datetime(values.astype(str).str[:10], errors="coerce", dayfirst=True, format="mixed")
        if dates.notna().mean() > 0.9:
            found.append((dates - pd.Timestamp("2000-01-01")).dt.days.to_numpy(float))
        else:
            found.append(values.astype("category").cat.codes.replace(-1, np.nan).to_numpy(float))
    return np.column_stack(found)


def trees(X: np.ndarray, y: np.ndarray, new: np.ndarray, category: int | None = None) -> np.ndarray:
    """Return the predictions of boosted trees, as many as three folds ask for."""
    if len(y) < 20 or np.ptp(y) == 0:
        return np.full(len(new), y.mean())
    found = []
    for leaves in (31, 63):
        parameters = {"objective": "l2", "verbosity": -1, "num_threads": 1, "learning_rate": 0.1, "seed": 0}
        parameters |= {"num_leaves": leaves} | ({} if category is None else {"categorical_feature": [category]})
        given = lightgbm.Dataset(X, y, params=parameters)
        stop = lightgbm.early_stopping(30, verbose=False)
        curve = lightgbm.cv(parameters, given, 1000, nfold=3, stratified=False, callbacks=[stop], seed=0)
        found.append((min(curve["valid l2-mean"]), int(np.argmin(curve["valid l2-mean"])) + 1, parameters))
    _, n_trees, parameters = min(found, key=lambda one: one[0])
    return np.asarray(lightgbm.train(parameters, lightgbm.Dataset(X, y, params=parameters), n_trees).predict(new))


def standardised(X: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return columns of unit variance, gaps at the mean."""
    middle = np.nan_to_num(np.nanmean(X, axis=0))
    spread = np.nan_to_num(np.nanstd(X, axis=0)) + 1e-12
    return np.nan_to_num((X - middle) / spread), np.nan_to_num((new - middle) / spread)


def mixed(X: np.ndarray, y: np.ndarray, site: np.ndarray, new: np.ndarray, new_site: np.ndarray) -> np.ndarray:
    """Return the predictions of a linear mixed model with a random intercept for each site, by REML."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    X, new = standardised(X, new)
    _, sizes, axes = np.linalg.svd(X, full_matrices=False)  # REML asks for columns that do not follow from each other
    axes = axes[sizes > 1e-6 * sizes[0]].T
    X, new = (np.column_stack((np.ones(len(rows)), rows @ axes)) for rows in (X, new))
    middle, spread = y.mean(), y.std()
    found = MixedLM((y - middle) / spread, X, groups=site).fit(reml=True)
    level = {j: float(np.ravel(effect)[0]) for j, effect in found.random_effects.items()} if found.cov_re.item() else {}
    return np.asarray(middle + spread * (new @ found.fe_params + np.array([level.get(j, 0.0) for j in new_site])))


def ridge(X: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return the predictions of ridge regression on columns of unit variance, gaps at the mean."""
    X, new = standardised(X, new)
    limits = y.min() - np.ptp(y), y.max() + np.ptp(y)
    return np.clip(RidgeCV(np.logspace(-3, 4, 15)).fit(X, y).predict(new), *limits)


def rse(y: np.ndarray, predicted: np.ndarray) -> float:
    """Return the squared error over the variance."""
    return float(np.sum((y - predicted) ** 2) / np.sum((y - y.mean()) ** 2))


def response(path: Path, table: pd.DataFrame) -> np.ndarray:
    """Return what is predicted; of classes 1 for yes."""
    return (table.target == "yes").to_numpy(float) if path.stem in CLASSES else table.target.to_numpy(float)


def yardsticks(path: Path, seed: int) -> dict[str, float]:
    """Return the own RSE on one table of what a user would take instead."""
    table, t = read(path, seed)
    y = response(path, table)
    labels, place = np.unique(table.site.astype(str), return_inverse=True)
    X = numbers(table.drop(columns=["site", "target"]))
    X = X[:, ~np.isnan(X).all(axis=0)]

    def by_site(predict: Callable[..., np.ndarray]) -> float:
        found = np.full(int(t.sum()), y[~t].mean())
        for j in range(len(labels)):
            a, b = (place == j) & ~t, (place == j) & t
            if b.any():
                found[b[t]] = predict(X[a], y[a], X[b])
        return rse(y[t], found)

    site = np.eye(len(labels))[place]
    with_site, with_intercepts = np.column_stack((X, place)), np.column_stack((X, site))
    row = {
        "mean alone": by_site(lambda X, y, new: np.full(len(new), y.mean())),
        "ridge alone": by_site(ridge),
        "trees alone": by_site(trees),
        "pooled ridge": rse(y[t], ridge(with_intercepts[~t], y[~t], with_intercepts[t])),
        "pooled trees": rse(y[t], trees(with_site[~t], y[~t], with_site[t], X.shape[1])),
        "sites": len(labels),
        "rows": len(y),
    }
    if importlib.util.find_spec("statsmodels"):
        row["pooled mixed model"] = rse(y[t], mixed(X[~t], y[~t], place[~t], X[t], place[t]))
    return row


def ours(path: Path, seed: int) -> dict[str, float]:
    """Return the errors of the default on one table, and what it costs."""
    table, t = read(path, seed)
    classes, y, row = path.stem in CLASSES, response(path, table), {}
    start = time.process_time()
    model: Any = (DeKRRClassifier if classes else DeKRRRegressor)(random_state=seed)
    model.fit(table[~t], "target", sites="site")
    row["seconds"] = time.process_time() - start
    new = table[t].drop(columns="target")
    if classes:
        yes = list(model.classes_).index("yes")
        row["own"] = rse(y[t], model.predict_proba(new, sites="site")[:, yes])
        every = [one.predict_proba(new.drop(columns="site"), elsewhere=True)[:, yes] for one in model.models_.values()]
        row["union"] = float(np.mean([rse(y[t], one) for one in every]))
    else:
        row["own"] = rse(y[t], model.predict(new, sites="site"))
        row["union"] = model.rse(new, y[t], sites="site", metric="union")
    row["MB"] = model.traffic_.total_bytes / table.site.nunique() / 1e6
    return row


def table_of(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the results as a table in Markdown: means over seeds, and for dekrr the standard deviation."""
    measured = [row for seeds in results.values() for row in seeds.values()]
    methods = [method for method in METHODS if all(method in row for row in measured)]
    lines = ["| | sites | " + " | ".join(methods) + " | seeds |", "|---|--:|" + "--:|" * len(methods) + "--:|"]
    for name, seeds in sorted(results.items()):
        rows = pd.DataFrame(list(seeds.values()))
        best = min(rows[method].mean() for method in methods if method != "union")
        cells = []
        for method in methods:
            text = f"{rows[method].mean():.4f}".lstrip("0")
            text = f"**{text}**" if method != "union" and rows[method].mean() == best else text
            spread = f" ± {rows[method].std():.4f}".replace(" 0.", " .") if method == "own" and len(rows) > 1 else ""
            cells.append(text + spread)
        lines.append(f"| {name} | {rows.sites[0]:.0f} | {' | '.join(cells)} | {len(rows)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--again", action="store_true", help="measure the default anew, and keep the yardsticks")
    parser.add_argument("--table", action="store_true", help="print what was measured, and measure nothing")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not arguments.table:
        for seed in range(arguments.seeds):
            for path in sorted((arguments.data_dir / "sites").glob("*.parquet")):
                done = results.setdefault(path.stem, {})
                known = done.get(str(seed))
                if (arguments.only and path.stem not in arguments.only) or (known and not arguments.again):
                    continue
                done[str(seed)] = (known or yardsticks(path, seed)) | ours(path, seed)
                print(path.stem, seed, {name: round(value, 4) for name, value in done[str(seed)].items()}, flush=True)
                RESULTS.write_text(json.dumps({n: kept for n, kept in results.items() if kept}, indent=1) + "\n")
    print(table_of({name: kept for name, kept in results.items() if kept}))


if __name__ == "__main__":
    main()
