"""Boosted trees at one site: LightGBM, as `dekrr.parts.trees` uses it, beside scikit-learn's HistGradientBoosting.

    python benchmarks/local_learners.py --out benchmarks/results/local_learners.json

Both fit one model per fold, on one thread, with the number of trees that the folds chose, and predict the rows of the
fold. scikit-learn is given that number: it cannot stop by the sum of several fits. Times are CPU seconds of the
thread, the least of some repetitions, since others may use the machine. Import time and memory are those of a process
of its own. `threads` is how much faster two threads fit sites than one: 2 is perfect.
"""

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

SIZES, COLUMNS, FOLDS = (30, 50, 150, 1000, 16000), (8, 30), (3, 5)
LARGEST = (16000, 30, 3)


def rows(n_rows, n_columns, seed=0):
    """Return made-up rows of a site, with about as much noise as signal."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, n_columns))
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + 0.5 * rng.normal(size=n_rows)


def fit_lightgbm(X, y, fold_of):
    from dekrr.parts.trees import fit_trees

    fitted = fit_trees(X, y, None, fold_of, seed=0)
    return (0, np.tile(y.mean(), len(y))) if fitted is None else (fitted.n_trees[0], fitted.out_of_fold[:, 0])


def fit_scikit_learn(X, y, fold_of, n_trees):
    from sklearn.ensemble import HistGradientBoostingRegressor

    from dekrr.parts.trees import settings_for

    given = settings_for(len(X))
    settings = {"max_iter": max(1, n_trees), "early_stopping": False, "learning_rate": given["learning_rate"]}
    settings |= {"max_leaf_nodes": given["num_leaves"], "max_bins": given["max_bin"], "max_depth": given["max_depth"]}
    found = np.empty(len(y))
    for fold in np.unique(fold_of):
        own = fold_of == fold
        learner = HistGradientBoostingRegressor(
            min_samples_leaf=int(np.ceil(given["min_sum_hessian_in_leaf"])), **settings
        )
        found[own] = learner.fit(X[~own], y[~own]).predict(X[own])
    return n_trees, found


def cost(learner, sites):
    """Return the CPU time of a site in ms, the least of three repetitions, and what the learner returned."""
    times = []
    for _ in range(3):
        start = time.thread_time()
        found = [learner(*site) for site in sites]
        times.append((time.thread_time() - start) / len(sites))
    return round(1e3 * min(times), 1), found


def error(sites, found):
    """Return the mean squared error of the predictions for rows of the fold, in variances of the response."""
    errors = [np.mean((own - y) ** 2) / np.var(y) for (_, y, _), (_, own) in zip(sites, found, strict=True)]
    return round(float(np.mean(errors)), 3)


def process(code):
    """Run code in a process of its own; return its CPU seconds and its largest memory in MB."""
    end = "import resource as r; u = r.getrusage(r.RUSAGE_SELF); print(u.ru_utime + u.ru_stime, u.ru_maxrss / 1024)"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{end}"], check=True, capture_output=True, text=True)
    return [float(number) for number in done.stdout.split()[-2:]]


def alone(name):
    """Return what an import of a learner costs, and the largest memory of a fit at a large site."""
    imported = {"lightgbm": "import lightgbm", "scikit-learn": "import sklearn.ensemble"}[name]
    start = [min(numbers) for numbers in zip(*(process("import numpy, scipy.sparse") for _ in range(3)), strict=True)]
    after = [min(n) for n in zip(*(process(f"import numpy, scipy.sparse; {imported}") for _ in range(3)), strict=True)]
    fit = {"lightgbm": "m.fit_lightgbm(X, y, f)", "scikit-learn": "m.fit_scikit_learn(X, y, f, 100)"}[name]
    n_rows, n_columns, n_folds = LARGEST
    made = f"X, y = m.rows({n_rows}, {n_columns}); f = m.np.arange({n_rows}) % {n_folds}"
    folder = str(Path(__file__).parent)
    memory = process(f"import sys; sys.path.insert(0, {folder!r}); import local_learners as m; {made}; {fit}")[1]
    files = importlib.metadata.distribution(name).files or []
    size = sum(os.path.getsize(file.locate()) for file in files if os.path.exists(file.locate()))
    return {
        "import, CPU s": round(after[0] - start[0], 2),
        "import, MB of memory": round(after[1] - start[1]),
        "fit of 16,000 rows, 30 columns, 3 folds: MB of memory of the process": round(memory),
        "installed, MB": round(size / 1e6, 1),
    }


def speedup(n_rows, n_sites):
    """Return how much faster two threads fit sites than one."""
    sites = [(*rows(n_rows, 8, seed), np.arange(n_rows) % 5) for seed in range(n_sites)]
    seconds = []
    for n_threads in (1, 2):
        start = time.perf_counter()
        with ThreadPoolExecutor(n_threads) as pool:
            list(pool.map(lambda site: fit_lightgbm(*site), sites))
        seconds.append(time.perf_counter() - start)
    return round(seconds[0] / seconds[1], 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    report = {"learners": {name: alone(name) for name in ("lightgbm", "scikit-learn")}, "fits": []}
    print(json.dumps(report, indent=1), flush=True)
    fit_lightgbm(*rows(50, 8), np.arange(50) % 5)
    fit_scikit_learn(*rows(50, 8), np.arange(50) % 5, 2)
    for n_rows in SIZES:
        for n_columns in COLUMNS:
            for n_folds in FOLDS:
                n_sites = 20 if n_rows <= 150 else 4 if n_rows <= 1000 else 1
                fold_of = np.arange(n_rows) % n_folds
                sites = [(*rows(n_rows, n_columns, seed), fold_of) for seed in range(n_sites)]
                ours, found = cost(fit_lightgbm, sites)
                given = [(*site, n_trees) for site, (n_trees, _) in zip(sites, found, strict=True)]
                theirs, others = cost(fit_scikit_learn, given)
                line = {"rows": n_rows, "columns": n_columns, "folds": n_folds, "sites": n_sites}
                line["trees"] = round(float(np.mean([n_trees for n_trees, _ in found])))
                line |= {"lightgbm, ms": ours, "scikit-learn, ms": theirs}
                line["held-out errors"] = [error(sites, found), error(sites, others)]
                report["fits"].append(line)
                print(json.dumps(line), flush=True)
    report["threads"] = {f"{n} rows": speedup(n, sites) for n, sites in ((50, 100), (1000, 12), (16000, 2))}
    print(json.dumps(report["threads"]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
