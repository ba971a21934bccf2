"""What the settings of a site's boosted trees change, on made-up functions whose noise-free values are known.

    python benchmarks/local_settings.py 40 150 600 --functions additive steps linear waves smooth

Each line has the error of the mean of five folds' boosters on 2,000 new rows, as a ratio to that with the settings of
`dekrr.parts.trees.settings_for`: the geometric mean over functions and repetitions. No data set is read.
"""

import argparse
import time

import numpy as np

from dekrr.parts.trees import fit_trees, settings_for

N_COLUMNS, N_NEW, N_FOLDS = 8, 2000, 5


def additive(X, rng):
    return 2 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 4 * (X[:, 2] - 0.5) ** 2 + X[:, 3] + 0.5 * X[:, 4]


def steps(X, rng):
    return 1.0 * (X[:, 0] > 0.4) + (X[:, 1] > 0.6) * (X[:, 2] > 0.3) - 0.7 * (X[:, 3] > 0.5)


def linear(X, rng):
    return X[:, :5] @ [2, 1, 1, 0.5, 0.5]


def waves(X, rng):
    return np.sin(6 * X[:, 0]) + np.sin(6 * X[:, 1] + 2 * X[:, 2])


def smooth(X, rng):
    a, b, c = rng.normal(size=(3, N_COLUMNS))
    return np.tanh(X @ a) + np.tanh((X - 0.5) @ b) * np.tanh((X - 0.5) @ c)


def network(X, rng):
    return np.tanh(3 * (X - 0.5) @ rng.normal(size=(N_COLUMNS, 30)) + rng.normal(size=30)) @ rng.normal(size=30)


def forest(X, rng):
    total = np.zeros(len(X))
    for _ in range(20):
        places = rng.integers(N_COLUMNS, size=6), rng.uniform(size=6)
        total += rng.normal(size=64)[(X[:, places[0]] > places[1]) @ (1 << np.arange(6))]
    return total


# Each function, and the standard deviation of its noise in its own.
FUNCTIONS = {additive: 0.5, steps: 0.3, linear: 0.7, waves: 0.5, smooth: 0.3, network: 0.1, forest: 0.1}


def variants(n_rows):
    """Return settings that differ from the default in one thing."""
    root = np.sqrt(n_rows)
    changed = {"as they are": {}}
    changed |= {f"rows in a leaf: {c:g} sqrt(n)": {"min_sum_hessian_in_leaf": min(20, c * root)} for c in (0.5, 1.5, 2)}
    changed["rows in a leaf: 20"] = {"min_sum_hessian_in_leaf": 20}
    changed |= {f"{leaves} leaves": {"num_leaves": leaves} for leaves in (8, 15, 31, 63)}
    changed |= {f"learning rate {rate}": {"learning_rate": rate} for rate in (0.05, 0.1, 0.2)}
    changed |= {f"{bins} bins": {"max_bin": bins} for bins in (63, 255)}
    changed["any depth"] = {"max_depth": -1}
    given = settings_for(n_rows)
    return {name: own for name, own in changed.items() if not own or any(given[key] != own[key] for key in own)}


def error(function, n_rows, seed, settings):
    rng = np.random.default_rng([seed, n_rows])
    rows = rng.uniform(size=(n_rows + N_NEW, N_COLUMNS))
    if function is steps:
        rows = np.floor(12 * rows) / 12
    true = function(rows, rng)
    y = true + FUNCTIONS[function] * true.std() * rng.normal(size=len(true))
    fold_of = rng.permutation(n_rows) % N_FOLDS
    fitted = fit_trees(rows[:n_rows], y[:n_rows], None, fold_of, seed=0, settings=settings)
    if fitted is None:
        return np.var(true[n_rows:])
    return np.mean((fitted.trees.predict(rows[n_rows:])[:, 0] - true[n_rows:]) ** 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n_rows", type=int, nargs="+")
    parser.add_argument("--functions", nargs="+", default=[function.__name__ for function in FUNCTIONS])
    parser.add_argument("--repetitions", type=int, default=4)
    parser.add_argument("--only", nargs="+", default=[], help="words of the settings to try")
    options = parser.parse_args()
    chosen = [function for function in FUNCTIONS if function.__name__ in options.functions]
    cases = [(function, seed) for function in chosen for seed in range(options.repetitions)]
    for n_rows in options.n_rows:
        base = None
        for name, settings in variants(n_rows).items():
            if base is not None and options.only and not any(word in name for word in options.only):
                continue
            start = time.thread_time()
            logs = np.log([error(function, n_rows, seed, settings) for function, seed in cases])
            spent = (time.thread_time() - start) / len(cases)
            base = logs if base is None else base
            print(f"{n_rows:6d} rows  {name:30s} {np.exp(np.mean(logs - base)):.3f}   {1e3 * spent:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
