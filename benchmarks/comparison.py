"""The default beside what one would use instead, at each site and on pooled rows: the first table of docs/accuracy.md.

    python benchmarks/comparison.py --data-dir DIR [--seeds 3] [--only houses,energy] [--methods ours,hgb]
    python benchmarks/comparison.py --earlier                       # take over the earlier default's results
    python benchmarks/comparison.py --table                         # print the table of the results that there are

Methods: *ours*, `DeKRRRegressor(n_features=D)`; *auto*, `DeKRRRegressor()`; *agreed*, the agreed part of the former
alone with tuned settings; *trees* and *ridge*, tuned and knowing the site, as in real_sites.py; scikit-learn's
HistGradientBoostingRegressor, XGBoost and LightGBM (200 trees each, otherwise as they come); kernel ridge regression,
exact and by Nystroem with 500 landmarks (Gaussian kernel on standardised columns, bandwidth the root of the number of
columns times 1/2, 1 or 2, ridge 1e-4 to 1, by the error on a fifth of the training rows held out); a Gaussian process
with a scale per column, on 800 rows; xRFM with its default settings (it takes PyTorch), a fifth of the rows its
validation. A method with ":sites" is trained at each site, one with ":pooled" on all rows. *earlier* is an earlier
default, DeKRR alone with tuned settings; its results are those of accuracy.json and *agreed*. Those of *release-0.2*
were measured then. Exact methods have at most 3,000 rows of a site or 6,000 of all, drawn at random. Nothing sees test
rows.
Every result is written as soon as it is there, and a second run goes on where the first was stopped.
"""

import argparse
import contextlib
import io
import json
import os
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import make_friedman1
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.kernel_approximation import Nystroem
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import real_sites
from accuracy import N_FEATURES, load
from dekrr import DeKRRRegressor
from dekrr.metrics import rse
from dekrr.settings import ALONE

RESULTS = Path(__file__).parent / "results" / "comparison.json"
TITLES = {
    "houses": "Houses",
    "airquality": "Air Quality",
    "energy": "Energy",
    "tomshardware": "Tom's Hardware",
    "twitter13813": "Twitter, 13,813 rows",
    "beijing12:0.1": "Beijing, a tenth of the rows",
    "beijing12": "Beijing, half of the rows (190,000)",
    "friedman1+0": "Friedman 1",
    "friedman1+5": "Friedman 1, 5 columns of noise",
    "friedman1+35": "Friedman 1, 35 columns of noise",
    "friedman1+200": "Friedman 1, 200 columns of noise",
}
METHODS = {
    "ours": "default",
    "auto": "default, D by the rows",
    "release-0.2": "default of release 0.2",
    "earlier": "earlier default",
    "agreed": "agreed part alone, tuned",
    "trees:sites": "tuned trees at each site",
    "trees:pooled": "tuned trees that know the site, pooled",
    "ridge:pooled": "ridge with an intercept for each site, pooled",
    "hgb:sites": "HistGradientBoosting at each site",
    "xgboost:sites": "XGBoost at each site",
    "lightgbm:sites": "LightGBM at each site",
    "krr:sites": "kernel ridge at each site",
    "nystroem:sites": "Nystroem ridge at each site",
    "xrfm:sites": "xRFM at each site",
    "hgb:pooled": "HistGradientBoosting, pooled",
    "xgboost:pooled": "XGBoost, pooled",
    "lightgbm:pooled": "LightGBM, pooled",
    "krr:pooled": "kernel ridge, pooled",
    "nystroem:pooled": "Nystroem ridge, pooled",
    "gp:pooled": "Gaussian process on 800 rows",
    "xrfm:pooled": "xRFM, pooled",
}
DEKRR = ("ours", "auto", "agreed")
FORMER = ("release-0.2", "earlier")
RANDOM = (*DEKRR, "nystroem:sites", "nystroem:pooled", "krr:sites", "krr:pooled", "gp:pooled")
COSTS = (
    "What the default costs, seed 0: the features of its shared and agreed part (means over sites), the MB that a site "
    "sends, those of them that are sums over the spanning tree (the shared part and the column scales take them), and "
    "seconds of processor time. The local part sends nothing."
)
SIX = ("houses", "airquality", "energy", "tomshardware", "twitter13813", "beijing12:0.1")
POOLED = ("trees:pooled", "hgb:pooled", "lightgbm:pooled", "xgboost:pooled")
MOST_ROWS = {"krr": {"sites": 3000, "pooled": 6000}, "gp": {"pooled": 800}}


def rows_of(name, directory):
    """Return (X, y, sites) to train and to test."""
    if name.startswith("friedman1"):
        X, y = make_friedman1(6000, n_features=5 + int(name.split("+")[1]), noise=1.0, random_state=0)
        sites = np.clip((X[:, 0] * 5).astype(int) * 2 + (X[:, 3] > 0.5), 0, 9)
        test = np.random.default_rng(0).random(len(y)) < 0.5
        return (X[~test], y[~test], sites[~test]), (X[test], y[test], sites[test])
    data, _, share = name.partition(":")
    parts = load(data, directory)[:2]
    if not share:
        return parts
    rng = np.random.default_rng(0)
    kept = [rng.random(len(part[1])) < 2 * float(share) for part in parts]  # a half is for testing
    return tuple(tuple(array[chosen] for array in part) for part, chosen in zip(parts, kept, strict=True))


def kernel_models(kind, n_columns, seed):
    """Yield the candidates of a kernel method."""
    for factor in (0.5, 1.0, 2.0):
        gamma = 1 / (2 * n_columns * factor**2)
        for ridge in (1e-4, 1e-2, 1.0):
            if kind == "krr":
                yield make_pipeline(StandardScaler(), KernelRidge(kernel="rbf", gamma=gamma, alpha=ridge))
            else:
                landmarks = Nystroem(gamma=gamma, n_components=500, random_state=seed)
                yield make_pipeline(StandardScaler(), landmarks, Ridge(alpha=ridge))


class RecursiveFeatureMachine:
    """xRFM with its default settings, on standardised columns and responses; the second rows are its validation."""

    def __init__(self, X, y, X_held, y_held):
        import torch
        from xrfm import xRFM

        self._scaler, self._mean, self._spread = StandardScaler().fit(X), y.mean(), y.std()
        responses = [((part - self._mean) / self._spread)[:, None] for part in (y, y_held)]
        rows = [self._scaler.transform(part) for part in (X, X_held)]
        given = [torch.tensor(part, dtype=torch.float32) for pair in zip(rows, responses, strict=True) for part in pair]
        self._model = xRFM(device=torch.device("cpu"), tuning_metric="mse", random_state=0)
        with contextlib.redirect_stdout(io.StringIO()):  # it tells of every iteration
            self._model.fit(*given)

    def predict(self, X):
        return self._mean + self._spread * np.ravel(self._model.predict(self._scaler.transform(X).astype(np.float32)))


def fitted(kind, X, y, seed, most):
    """Return a fitted model of one site, or of pooled rows."""
    rng = np.random.default_rng(seed)
    if most and len(y) > most:
        chosen = rng.choice(len(y), most, replace=False)
        X, y = X[chosen], y[chosen]
    if kind == "hgb":
        return HistGradientBoostingRegressor(random_state=0, max_iter=200, early_stopping=True).fit(X, y)
    if kind == "xgboost":
        from xgboost import XGBRegressor

        return XGBRegressor(n_estimators=200, n_jobs=1, random_state=0).fit(X, y)
    if kind == "lightgbm":
        from lightgbm import LGBMRegressor

        return LGBMRegressor(n_estimators=200, n_jobs=1, random_state=0, verbose=-1).fit(X, y)
    if kind == "gp":
        kernel = ConstantKernel() * RBF(np.full(X.shape[1], np.sqrt(X.shape[1]))) + WhiteKernel(0.1)
        process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
        return make_pipeline(StandardScaler(), process).fit(X, y)
    held = rng.random(len(y)) < 0.2
    if kind == "xrfm":
        return RecursiveFeatureMachine(X[~held], y[~held], X[held], y[held])
    candidates = list(kernel_models(kind, X.shape[1], seed))
    errors = [np.mean((m.fit(X[~held], y[~held]).predict(X[held]) - y[held]) ** 2) for m in candidates]
    return candidates[int(np.argmin(errors))].fit(X, y)


def measured(method, name, seed, directory):
    """Return the errors and the cost of one method."""
    (X, y, sites), (X_test, y_test, sites_test) = rows_of(name, directory)
    n_features = N_FEATURES.get(name.partition(":")[0], 60)
    scale = {"scale": None} if name in ("houses", "airquality", "energy") else {}
    start, sizes = time.process_time(), {}
    if method in DEKRR:
        alone = ALONE if method == "agreed" else {}
        given = {"n_features": n_features} if method != "auto" else {}
        model = DeKRRRegressor(random_state=seed, **given, **scale, **alone).fit(X, y, sites=sites)
        seconds = time.process_time() - start
        own, union = (model.rse(X_test, y_test, sites=sites_test, metric=metric) for metric in ("own", "union"))
        sizes = sizes_of(model)
    else:
        kind, where = method.split(":")
        most = MOST_ROWS.get(kind, {}).get(where)
        labels = np.unique(sites)
        if kind in ("trees", "ridge"):
            own = rse(y_test, tuned(kind, where, X, y, sites, X_test, sites_test))
            seconds = time.process_time() - start
            union = own if where == "pooled" else float("nan")  # a site's trees are asked about its own rows alone
        elif where == "pooled":
            models = [fitted(kind, X, y, seed, most)]
        else:
            models = [fitted(kind, X[sites == j], y[sites == j], seed, most) for j in labels]
        if kind not in ("trees", "ridge"):
            seconds = time.process_time() - start
            predicted = np.array([model.predict(X_test) for model in models])
            union = float(np.mean([rse(y_test, one) for one in predicted]))
            of_site = predicted if len(models) > 1 else np.repeat(predicted, len(labels), axis=0)
            own = rse(y_test, of_site[np.searchsorted(labels, sites_test), np.arange(len(y_test))])
    return {
        "data": name,
        "method": method,
        "seed": seed,
        "own": round(float(own), 5),
        "union": None if np.isnan(union) else round(float(union), 5),
        "cpu_seconds": round(seconds, 2),
        **sizes,
    }


def tuned(kind, where, X, y, sites, X_test, sites_test):
    """Return the predictions for rows of known sites: by what an analyst would tune, of a site or of all rows."""
    labels = np.unique(sites)
    if where == "sites":
        found = np.empty(len(X_test))
        for label in labels:
            own = sites_test == label
            found[own] = real_sites.trees(X[sites == label], y[sites == label], X_test[own])
        return found
    places = [np.searchsorted(labels, of_rows) for of_rows in (sites, sites_test)]
    if kind == "trees":
        told = [np.column_stack([part, place]) for part, place in zip((X, X_test), places, strict=True)]
        return real_sites.trees(told[0], y, told[1], category=X.shape[1])
    told = [np.hstack([part, np.eye(len(labels))[place]]) for part, place in zip((X, X_test), places, strict=True)]
    return real_sites.ridge(told[0], y, told[1])


def sizes_of(model):
    """Return the features of each part, the mean over sites, and what a site sends: all, and over the tree."""
    features = dict.fromkeys(("own", "shared"), 0.0)
    for one in model.models_.values():
        for part, member in zip(one.header.parts or ["own"], one.members, strict=False):
            if part in features:
                features[part] += member.feature_map.n_features / len(model.models_)
    sent = {"megabytes": model.traffic_.total_bytes, "megabytes_tree": model.traffic_.bytes_by_kind["Total"]}
    return {f"features_{part}": round(number, 1) for part, number in features.items()} | {
        name: round(number / len(model.sites_) / 1e6, 3) for name, number in sent.items()
    }


def table(results, names, metric):
    """Return own or union RSE by method and data set: mean, and standard error over seeds, the least own error bold."""
    found = {}
    for result in results:
        method, name = result["method"], result["data"]
        one_model = method.endswith("pooled") or method == "trees:sites"  # of these union is not told
        if name in names and not (metric == "union" and one_model):
            found.setdefault((method, name), []).append(result)
    names = [name for name in names if any(data == name for _, data in found)]
    lines = [
        f"| {metric} RSE | " + " | ".join(TITLES[name] for name in names) + " |",
        "|---" + "|--:" * len(names) + "|",
    ]
    mean = {key: np.mean([result[metric] for result in of_key]) for key, of_key in found.items()}
    least = {name: min(value for (_, data), value in mean.items() if data == name) for name in names}
    for method, words in METHODS.items():
        cells = [_spread([r[metric] for r in found[method, n]]) if (method, n) in found else "" for n in names]
        best = [metric == "own" and mean.get((method, name)) == least[name] for name in names]
        bold = [f"**{cell}**" if is_best else cell for cell, is_best in zip(cells, best, strict=True)]
        if any(cells):
            lines.append(f"| {words} | " + " | ".join(bold) + " |")
    seeds = [str(len(found.get(("ours", name), [])) or "") for name in names]
    return "\n".join([*lines, *(["| seeds of the default | " + " | ".join(seeds) + " |"] if any(seeds) else [])])


def costs(results):
    """Return the table of what the default costs at seed 0."""
    columns = {"ours": "D given", "auto": "D by the rows"}
    columns = {method: words for method, words in columns.items() if any(r["method"] == method for r in results)}
    head = [f"{words}: {what}" for words in columns.values() for what in ("features", "MB", "MB of trees", "s")]
    lines = ["| | " + " | ".join(head) + " |", "|---" + "|--:" * len(head) + "|"]
    for name, found in first_seed(results).items():
        if not any(method in found for method in columns):
            continue
        cells = []
        for method in columns:
            one = found.get(method, {})
            parts = [one.get(f"features_{part}") for part in ("shared", "own")]
            if None in parts:
                cells += [""] * 4
                continue
            numbers = (one.get(key) for key in ("megabytes", "megabytes_tree", "cpu_seconds"))  # no time under load
            cells += [" + ".join(f"{part:.0f}" for part in parts), *("" if n is None else f"{n:.1f}" for n in numbers)]
        lines.append(f"| {TITLES[name]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def seconds(results):
    """Return the table of the processor time of every method at seed 0."""
    of_data = first_seed(results)
    lines = ["| seconds of processor time | " + " | ".join(TITLES[name] for name in of_data) + " |"]
    lines.append("|---" + "|--:" * len(of_data) + "|")
    for method, words in METHODS.items():
        times = [found.get(method, {}).get("cpu_seconds") for found in of_data.values()]
        if any(times):
            lines.append(f"| {words} | " + " | ".join("" if s is None else f"{s:.1f}" for s in times) + " |")
    return "\n".join(lines)


def first_seed(results):
    """Return the results of seed 0 by data set and method."""
    found = {name: {r["method"]: r for r in results if (r["data"], r["seed"]) == (name, 0)} for name in TITLES}
    return {name: methods for name, methods in found.items() if methods}


def means(results, method, metric):
    """Return the mean over seeds for each data set."""
    names = {result["data"] for result in results if result["method"] == method}
    chosen = [result for result in results if result["method"] == method]
    return {name: np.mean([result[metric] for result in chosen if result["data"] == name]) for name in names}


def comparisons(results):
    """Return lines that compare the default with the earlier one, and with pooled trees, on the six data sets."""
    lines = []
    for metric in ("own", "union"):
        now, before = means(results, "ours", metric), means(results, "earlier", metric)
        falls = {name: 1 - now[name] / before[name] for name in SIX if name in now and name in before}
        if falls:
            told = ", ".join(f"{TITLES[name].split(',')[0]} {100 * fall:.1f} %" for name, fall in falls.items())
            mean = 100 * np.mean(list(falls.values()))
            lines.append(f"- {metric} RSE against the earlier default, less by: {told}; mean {mean:.1f} %.")
    own = means(results, "ours", "own")
    for method in POOLED:
        trees = means(results, method, "own")
        both = [name for name in SIX if name in own and name in trees]
        ahead = [TITLES[name].split(",")[0] for name in both if own[name] < trees[name]]
        if both:
            kind = METHODS[method].split(",")[0]
            lines.append(f"- own RSE against pooled {kind}: ahead on {len(ahead)} of {len(both)} ({', '.join(ahead)}).")
    return "\n".join(lines)


def earlier(results):
    """Return the results of the earlier default, on the same rows: DeKRR alone with tuned settings.

    Those that benchmarks/accuracy.py measured come first, then those of *agreed* with further seeds of the same data.
    """
    kept = []
    for fit in json.loads((RESULTS.parent / "accuracy.json").read_text())["fits"]:
        if fit["method"] == "ours":
            errors = {metric: round(fit[metric], 5) for metric in ("own", "union")}
            kept.append({"data": fit["data"], "method": "earlier", "seed": fit["seed"], **errors})
    known = {(result["data"], result["seed"]) for result in kept}
    names = {name for name, _ in known}
    for result in results:
        place = result["data"], result["seed"]
        if result["method"] == "agreed" and place[0] in names and place not in known:
            kept.append({key: result[key] for key in ("data", "seed", "own", "union")} | {"method": "earlier"})
    return kept


def _spread(values):
    shown = f"{np.mean(values):.4f}".removeprefix("0")
    if len(values) == 1:
        return shown
    return shown + f" ± {np.std(values, ddof=1) / np.sqrt(len(values)):.4f}".replace(" 0.", " .")


def told(results):
    """Return these results as they are on the page."""
    made_up = [name for name in TITLES if name.startswith("friedman")]
    real = [name for name in TITLES if name not in made_up]
    errors = [table(results, names, metric) for names in (real, made_up) for metric in ("own", "union")]
    return "\n\n".join([*errors, comparisons(results), COSTS, costs(results), seconds(results)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default=os.environ.get("DEKRR_DATA"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default=",".join(TITLES))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--earlier", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    results = json.loads(options.out.read_text()) if options.out.exists() else []
    if options.earlier:
        results = [result for result in results if result["method"] != "earlier"] + earlier(results)
        options.out.write_text(json.dumps(results, indent=0))
        return
    if options.table:
        print(told(results))
        return
    if not options.data_dir:
        parser.error("where is the data? Give --data-dir or set DEKRR_DATA")
    done = {(result["data"], result["method"], result["seed"]) for result in results}
    for seed in range(options.seeds):
        for name in options.only.split(","):
            for method in options.methods.split(","):
                if method in FORMER or (name, method, seed) in done or (seed and method not in RANDOM):
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    results.append(measured(method, name, seed, options.data_dir))
                options.out.write_text(json.dumps(results, indent=0))
                print(results[-1], flush=True)


if __name__ == "__main__":
    main()
