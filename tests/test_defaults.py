"""What users run: DeKRRRegressor() with its defaults on a raw frame, with all that a frame may bring."""

import numpy as np
import pandas as pd
import pytest

from dekrr import DeKRRRegressor
from dekrr.estimators.network import FitEvent

N_ROWS = 360


def made(seed, n_rows=N_ROWS):
    """Return a frame with numbers, words, dates, missing values, weights and two responses of other units."""
    rng = np.random.default_rng(seed)
    x, wind = rng.normal(size=n_rows), rng.choice(["calm", "gale"], n_rows)
    sites = rng.choice(["a", "b", "c"], n_rows)
    frame = pd.DataFrame({"x": x, "wind": wind, "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(x.argsort(), "D")})
    frame["power"] = np.sin(2 * x) + (wind == "gale") + 0.5 * (sites == "a") + 0.1 * rng.normal(size=n_rows)
    frame["cost"] = 1e4 * (x**2 + 0.2 * rng.normal(size=n_rows))
    frame.loc[::17, "x"] = np.nan
    return frame.assign(site=sites, often=rng.integers(1, 4, n_rows))


@pytest.fixture(scope="module")
def events():
    return []


@pytest.fixture(scope="module")
def fitted(events):
    regressor = DeKRRRegressor(random_state=0, callbacks=[events.append])
    return regressor.fit(made(0), ["power", "cost"], sites="site", sample_weight="often")


NEW = made(1, 200)


def test_several_outputs_of_other_units_count_alike_and_weights_are_no_column(fitted):
    assert fitted.feature_names_in_.tolist() == ["x", "wind", "when"]
    predicted = fitted.predict(NEW, sites="site")
    known = NEW["x"].notna()
    for k, name in enumerate(("power", "cost")):
        error = np.mean((predicted[known, k] - NEW.loc[known, name]) ** 2) / NEW.loc[known, name].var()
        assert error < 0.25, name


def test_progress_says_where_a_fit_is(events, fitted):
    stages = [event.stage for event in events]
    assert isinstance(events[0], FitEvent)
    assert {"scales", "shared part", "rounds", "local part", "held-out rows"} < set(stages)
    assert stages[-1] == "done"
    assert max(event.round for event in events) > 0
    assert stages.count("scales") < 0.3 * len(stages)


def test_intervals_and_what_is_passed_on(fitted):
    lower, upper = np.moveaxis(fitted.predict_interval(NEW, sites="site"), 1, 0)
    truth = NEW[["power", "cost"]].to_numpy()
    assert np.mean((truth >= lower) & (truth <= upper)) > 0.8
    shared = fitted.models_["a"].without_local()
    at_home = NEW[NEW["site"] == "a"]
    lower, upper = np.moveaxis(shared.predict_interval(at_home), 1, 0)
    truth = at_home[["power", "cost"]].to_numpy()
    assert np.mean((truth >= lower) & (truth <= upper)) > 0.8


def test_updates_keep_what_is_said_of_the_users_columns():
    """Nor do new rows move what the sites have agreed on: names, columns and scales."""
    first, more, new = (frame.drop(columns="cost") for frame in (made(0), made(2), NEW))
    regressor = DeKRRRegressor(random_state=0).fit(first, "power", sites="site", sample_weight="often")
    scales, before = regressor.column_scales_, regressor.score(new, "power", sites="site")
    assert scales.shape == (3,)
    regressor.partial_fit(more, "power", sites="site", sample_weight="often")
    np.testing.assert_array_equal(regressor.column_scales_, scales)
    assert regressor.score(new, "power", sites="site") > before - 0.05


def test_a_private_fit_without_sites_takes_a_row_that_occurs_twice():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (400, 2))
    X[7] = X[3]
    y = np.sin(3 * X[:, 0])
    fitted = DeKRRRegressor(random_state=0, privacy=4.0, bounds=([-1, -1, -1], [1, 1, 1])).fit(X, y)
    assert sum(fitted.n_rows_.values()) == 400
