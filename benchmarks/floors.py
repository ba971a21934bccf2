"""Times of fits beside their floor: the time of operations that no fit can avoid, on the same cores in the same run.

They are each cosine once, at the best rate; the products of rows with frequencies; and the products of features in the
sums, in double precision and in their actual shapes. A lower floor assumes the rate of large square products. The
choice of features, messages, solving and everything else come on top of the floor.

python benchmarks/floors.py --data-dir DATA --out benchmarks/results/floors.json
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dekrr.features import block_rows, compiled, terms_of, wave_blocks
from dekrr.lab.commands.bench import Bench, write
from dekrr.lab.experiments.speed import best_seconds, machine, pooled_peers, problem, ratio_of
from dekrr.networks.local import free_cores, one_blas_thread
from dekrr.selection import Greedy
from dekrr.statistics import rows_per_block
from dekrr.tables.rows import SAMPLE_ROWS

LOWER = "floor at the best rate of all"
CHOSEN_BY = Greedy().max_rows or 0  # the number of rows by which a site chooses its features


@dataclass(frozen=True)
class FlopRates:
    """The best rates of all cores together, in operations per second.

    Parameters
    ----------
    cosines : float
        Cosines with phase and amplitude, for angles that are already computed.
    products : float
        Multiplications with an addition, in double precision.
    """

    cosines: float
    products: float

    @classmethod
    def measured(cls, n_threads):
        """Measure both rates with `n_threads` threads."""
        rng = np.random.default_rng(0)
        size = 1 << 15
        angles = [rng.uniform(size=(size // 256, 256)) for _ in range(n_threads)]
        phases, amplitudes = np.zeros(256), np.ones(256)
        loops = compiled()

        def cosines(block):
            if loops is not None:
                for _ in range(200):
                    loops.overwrite(block, phases, amplitudes, *terms_of(block.dtype))
                return
            for _ in range(200):
                np.cos(block, out=block)

        matrices = [rng.uniform(size=(3, 1024, 1024)) for _ in range(n_threads)]

        def products(matrices):
            left, right, out = matrices
            for _ in range(3):
                np.matmul(left.T, right, out=out)

        with one_blas_thread, ThreadPoolExecutor(n_threads) as pool:
            cosine_seconds = best_seconds(lambda: list(pool.map(cosines, angles)), 5)
            product_seconds = best_seconds(lambda: list(pool.map(products, matrices)), 5)
        return cls(200 * size * n_threads / cosine_seconds, 3 * 1024.0**3 * n_threads / product_seconds)

    def floor(self, problem, candidates=0, sample=None):
        """Return the floor in seconds, with products at the rate of large square products.

        A site and its four neighbours have D features each. For every row a fit takes 5 D cosines, 5 D d
        multiplications for their angles, D (D + 1) / 2 + 4 D^2 multiplications for products with the site's own
        features, and 4 D (D + 1) / 2 for products of the neighbours' features with themselves. The choice of features
        takes one cosine and d multiplications per candidate, for every row by which features are chosen.
        """
        size, n_columns, n_rows = problem.n_features, problem.X.shape[1], len(problem.y)
        products = n_rows * (5.0 * size * n_columns + 5 * size * (size + 1) / 2 + 4 * size**2)
        products += chosen_by(problem, sample) * candidates * n_columns
        return self.seconds(cosines_of(problem, candidates, sample), products)

    def floor_of_shapes(self, problem, n_threads, candidates=0, sample=None):
        """Return the floor in seconds, with products timed in their actual shapes on one of `n_threads` cores."""
        size, (n_rows, n_columns) = problem.n_features, problem.X.shape
        n_timed = min(n_rows // (int(problem.sites.max()) + 1), rows_per_block(5 * size * 8))
        rng = np.random.default_rng(0)
        rows, frequencies = rng.uniform(size=(n_timed, n_columns)), rng.uniform(size=(n_columns, 5 * size))
        features, pool = np.empty((n_timed, 5 * size)), rng.uniform(size=(n_columns, candidates))
        block = block_rows(pool)
        angles = np.empty((block, candidates))

        def sums():
            np.matmul(rows, frequencies, out=features)
            features[:, :size].T @ features
            for start in range(size, 5 * size, size):
                part = features[:, start : start + size]
                part.T @ part

        def choice():
            for start in range(0, n_timed, block):
                taken = rows[start : start + block]
                np.matmul(taken, pool, out=angles[: len(taken)])

        with one_blas_thread:
            seconds = n_rows * best_seconds(sums, 60)
            if candidates:
                seconds += chosen_by(problem, sample) * best_seconds(choice, 60)
        return float(self.seconds(cosines_of(problem, candidates, sample), 0) + seconds / (n_timed * n_threads))

    def greedy_choice(self, problem, candidates):
        """Return the seconds of the further operations that no greedy choice can avoid; L is the shortlist's size.

        Every row by which a site chooses takes L products with all candidates. Every row of its sample takes, for each
        of five shortlists (its own and its four neighbours'), L cosines, L d multiplications for angles, and
        L (L + 1) / 2 multiplications for products.
        """
        n_sites = int(problem.sites.max()) + 1
        listed, n_columns = Greedy().shortlist * problem.n_features, problem.X.shape[1]
        n_chosen, sampled = (min(len(problem.y), n_sites * max_rows) for max_rows in (CHOSEN_BY, SAMPLE_ROWS))
        cosines = 5 * sampled * listed
        products = n_chosen * listed * candidates + 5 * sampled * listed * (n_columns + (listed + 1) / 2)
        return self.seconds(cosines, products)

    def seconds(self, cosines, products):
        """Return the seconds that these numbers of cosines and products take."""
        return float(cosines / self.cosines + products / self.products)


def chosen_by(problem, sample):
    return len(problem.y) if sample is None else min(len(problem.y), sample)


def cosines_of(problem, candidates, sample):
    return float(len(problem.y) * 5 * problem.n_features + chosen_by(problem, sample) * candidates)


def split_fit(directory, *, quick):
    """Time fits with energy features on Houses and Tom's against their floor."""
    for name in ("houses", "tomshardware")[: 1 if quick else 2]:
        workload = problem(name, directory)
        fit = workload.fit("energy")
        fit()
        cores, candidates, turns = free_cores(), 20 * workload.n_features, []
        for _ in range(1 if quick else 3):
            rates = FlopRates.measured(cores)
            floor = rates.floor_of_shapes(workload, cores, candidates)
            turns.append({"fit": best_seconds(fit, 7), "floor": floor, LOWER: rates.floor(workload, candidates)})
        seconds = {what: min(turn[what] for turn in turns) for what in turns[0]}
        settings = workload.settings | {"features": "energy", "consensus": 1.0, "tol": 1e-6, "solver": "chebyshev"}
        for floor in ("floor", LOWER):
            yield ratio_of(f"{name}: fit / {floor}", "fit", floor, seconds, "lower", settings)


def large_fit(directory, *, quick):
    """Time fits on two million rows of household power against the floor and against scikit-learn."""
    workload = problem("household_power", directory, 200_000 if quick else None)
    rates = FlopRates.measured(free_cores())
    pooled = pooled_peers(workload.X, workload.y, workload.n_features, sigma=workload.sigma, alpha=workload.alpha)
    peer = "RBFSampler + Ridge"
    peer_seconds = best_seconds(pooled[peer], 1)
    floors = {}
    for features, candidates in (("plain", 0), ("greedy", 20 * workload.n_features)):
        floors[features] = {
            "floor": rates.floor_of_shapes(workload, free_cores(), candidates, sample=10 * CHOSEN_BY),
            LOWER: rates.floor(workload, candidates, sample=10 * CHOSEN_BY),
        }
    chosen = rates.greedy_choice(workload, 20 * workload.n_features)
    floors["greedy"]["floor with the choice"] = floors["greedy"]["floor"] + chosen
    for features in ("plain", "greedy"):
        fit = workload.fit(features)
        seconds = {"fit": best_seconds(fit, 3 if quick else 1), **floors[features], peer: peer_seconds}
        settings = workload.settings | {"features": features, "consensus": 1.0, "tol": 1e-6}
        name = f"household_power, {features}, double"
        for floor in floors[features]:
            yield ratio_of(f"{name}: fit / {floor}", "fit", floor, seconds, "lower", settings)
        yield ratio_of(f"{name}: {peer} / fit", peer, "fit", seconds, "higher", settings)


def greedy_choice(_, *, quick):
    """Time the choice of 150 of 3000 candidates at one site, on one core, against evaluating the candidates."""
    for n_rows in (1400, 100_000)[: 1 if quick else 2]:
        rng = np.random.default_rng(0)
        X = rng.uniform(size=(n_rows, 96))
        y = np.sin(X @ rng.normal(size=96))
        selector = Greedy(150, sigma=4.0)
        pool = selector.draw_pool(96, rng).feature_map
        rows = X[: min(n_rows, CHOSEN_BY)]
        parts = (pool.frequencies, pool.phases, pool.amplitudes)

        def evaluate(rows=rows, parts=parts):
            for _ in wave_blocks(rows, *parts):
                pass

        def choose(X=X, y=y, selector=selector):
            selector.select(X, y, np.random.default_rng(0))

        with one_blas_thread:
            choose()
            seconds = {"choice": best_seconds(choose, 5), "candidates once": best_seconds(evaluate, 5)}
        settings = {"rows": n_rows, "columns": 96, "candidates": pool.n_features, "n_features": 150, "cores": 1}
        name = f"greedy, {n_rows} rows: choice / candidates once"
        yield ratio_of(name, "choice", "candidates once", seconds, "lower", settings)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="where the data sets are; without them, made-up rows")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/floors.json"))
    arguments = parser.parse_args()
    figures = []
    for timed in (split_fit, large_fit, greedy_choice):
        for figure in timed(arguments.data_dir, quick=arguments.quick):
            figures.append(figure)
            print(f"{figure.name}: {figure.ratio:.3g}", flush=True)
            write(arguments.out, Bench(machine(), figures))


if __name__ == "__main__":
    main()
