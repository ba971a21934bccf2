"""The warning that noise of differential privacy costs much of a model's accuracy."""

import json
import math
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from dekrr import DeKRRRegressor, DifferentialPrivacy
from dekrr.errors import NoiseWarning
from dekrr.privacy import mechanism as rule
from dekrr.privacy.mechanism import (
    DOUBLES,
    DROWNS,
    GaussianSums,
    calibrated,
    delta_of,
    noise_share,
    unpack,
    warning_of_noise,
)

pytest.importorskip("opendp", reason="the extra dp is not installed")

RESULTS = json.loads((Path(__file__).parents[1] / "benchmarks" / "results" / "privacy_noise.json").read_text())
NOISY = [fit for fit in RESULTS if "share" in fit]


def test_the_norm_of_the_noise_by_the_eigenvalues_of_what_is_drawn():
    size = 100
    measurement, scale = calibrated(2.0, 1e-6, 2.2)
    drawn = np.asarray(measurement([0.0] * (size * (size + 1) // 2 + size)))
    gram, _ = unpack(drawn, (size,))
    assert np.linalg.norm(gram, 2) == pytest.approx(noise_share(scale, size, 1), rel=0.15)


def test_the_thresholds_are_those_of_the_measurements(benchmark_named):
    bad = [fit["own"] > min(0.9, 2 * fit["exact"]) for fit in NOISY]
    doubled = [fit["share"] >= DOUBLES for fit in NOISY]
    assert np.mean([is_bad for is_bad, is_told in zip(bad, doubled, strict=True) if is_told]) > 0.85
    assert np.mean([is_bad for is_bad, is_told in zip(bad, doubled, strict=True) if not is_told]) < 0.15
    drowned = [fit["own"] > 0.9 for fit in NOISY if fit["share"] >= DROWNS]
    assert 0.35 < np.mean(drowned) < 0.65
    assert {fit["n_rows"] for fit in NOISY} == {100, 300, 1000, 3000, 10_000, 20_000}
    assert "".join(benchmark_named("privacy_noise").table(RESULTS).split()) in "".join(rule.__doc__.split())


@pytest.mark.parametrize("colluders", [None, 1])
@pytest.mark.parametrize(("n_rows", "n_features", "epsilon"), [(300, 40, 4.0), (900, 60, 0.5), (5000, 200, 1.0)])
def test_each_remedy_would_do(n_rows, n_features, epsilon, colluders):
    privacy = DifferentialPrivacy(epsilon, colluders=colluders)

    def share(n_rows=n_rows, n_features=n_features, epsilon=epsilon):
        given = DifferentialPrivacy(epsilon)
        scale = calibrated(epsilon, delta_of(given, n_rows), GaussianSums(given, n_rows).spent.sensitivity)[1]
        return noise_share(scale, n_features, n_rows), scale

    before, scale = share()
    assert before > DOUBLES
    text = warning_of_noise(privacy, scale, n_features, n_rows)
    (rows,) = re.findall(r"about (\d+) rows a site", text)
    assert 0.85 * DOUBLES < share(n_rows=int(rows))[0] < 1.1 * DOUBLES
    for number in re.findall(r"n_features=(\d+)", text):
        assert 0.8 * DOUBLES < share(n_features=int(number))[0] <= DOUBLES
    for number in re.findall(r" epsilon=([\d.]+) to", text):
        assert 0.8 * DOUBLES < share(epsilon=float(number))[0] < 1.3 * DOUBLES
    assert ("colluders=1 helps" in text) == (colluders is None)
    assert ("hardly better than the mean" in text) == (before >= DROWNS)
    assert warning_of_noise(privacy, scale, n_features, math.ceil(n_rows * before / DOUBLES) + 1) is None


@pytest.mark.parametrize("colluders", [None, 1])
def test_a_fit_warns_once_in_words_and_not_where_rows_are_many(colluders):
    rng = np.random.default_rng(0)
    given = {"features": "plain", "n_features": 10, "sigma": 0.5, "alpha": 1e-4, "consensus": 1.0, "random_state": 0}
    given |= {"bounds": ((0.0, 0.0, -1.0), (1.0, 1.0, 1.0)), "tol": 1e-2}
    told = {}
    for n_rows in (60, 6000):
        X = rng.uniform(size=(3 * n_rows, 2))
        model = DeKRRRegressor(**given, privacy=DifferentialPrivacy(8.0, colluders=colluders))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            model.fit(X, np.sin(3 * X[:, 0]), sites=np.repeat(["a", "b", "c"], n_rows))
        told[n_rows] = [str(one.message) for one in caught if one.category is NoiseWarning]
        assert {one.filename for one in caught if one.category is NoiseWarning} <= {__file__}
    assert told[6000] == []
    (text,) = told[60]
    assert ("of the smallest site" in text) == (colluders is None)
    assert ("180 rows of all sites" in text) == (colluders is not None)
