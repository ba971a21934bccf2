import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.exceptions import ConvergenceWarning

from conftest import make_problem
from dekrr import DeKRRRegressor, SettingsError
from dekrr.data import make_sites
from dekrr.messages import Unchanged, decode, encode
from dekrr.networks.local import LocalNetwork
from dekrr.protocols import dekrr
from dekrr.protocols.dekrr import Listener, Sender
from dekrr.selection import Plain
from dekrr.settings import ALONE, DeKRRSettings, Wire
from dekrr.settings import WIRE_PRECISIONS as PRECISIONS

vectors = arrays(np.float64, 5, elements=st.floats(-100, 100))


@given(st.lists(vectors, min_size=1, max_size=6), st.sampled_from(PRECISIONS), st.floats(0, 5))
def test_listeners_know_what_the_sender_thinks_they_know(path, precision, censor_start):
    sender = Sender(Wire(precision=precision, censor_start=censor_start), np.zeros(5))
    listener = Listener({"a": np.zeros(5)})
    for rounds, coefficients in enumerate(path):
        message = sender.message(coefficients, rounds, (1.0, 2.0))
        assert listener.hear({"a": decode(encode(message), "a")}) == {"a": (1.0, 2.0)}
        np.testing.assert_array_equal(listener.known["a"], sender.known)
        if isinstance(message, Unchanged):
            assert np.linalg.norm(coefficients - sender.known) < censor_start


@given(vectors)
def test_rounding_is_made_up_for(coefficients):
    sender = Sender(Wire(precision="int8"), np.zeros(5))
    for rounds in range(8):
        sender.message(coefficients, rounds, (0.0, 0.0))
    np.testing.assert_allclose(sender.known, coefficients, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("precision", "tolerance"), [("double", 1e-9), ("single", 1e-5), ("int8", 1e-8)])
def test_solution_survives_the_wire(precision, tolerance):
    problem = make_problem(3, n_sites=6)
    settings = DeKRRSettings(
        lone_neighbor="warn",
        alpha=problem.alpha,
        scale=None,
        min_rows=1,
        tol=0.0,
        max_rounds=300,
        wire=Wire(precision=precision),
        verify_features=False,
    )
    outcomes = LocalNetwork(problem.graph).run(
        {name: dekrr.train(site, Plain(), settings) for name, site in problem.sites.items()}
    )
    for name, expected in problem.solution().items():
        np.testing.assert_allclose(outcomes[name].coefficients, expected, rtol=0, atol=tolerance)


def test_fewer_bytes_at_the_same_error():
    X, y, sites = make_sites(random_state=0)
    settings = {**ALONE, "n_features": 40, "sigma": 0.5, "alpha": 1e-4, "consensus": 1.0, "tol": 0.0, "max_rounds": 30}
    sent, errors = {}, {}
    for precision in PRECISIONS:
        fitted = DeKRRRegressor(**settings, wire_precision=precision, random_state=0).fit(X, y, sites=sites)
        sent[precision] = fitted.traffic_.bytes_by_kind["Coefficients"]
        errors[precision] = fitted.rse(X, y, sites=sites)
    assert sent["single"] < 0.65 * sent["double"]
    assert sent["int8"] < 0.35 * sent["double"]
    assert errors["single"] == pytest.approx(errors["double"], rel=1e-4)
    assert errors["int8"] == pytest.approx(errors["double"], rel=1e-3)


CENSORED = {**ALONE, "n_features": 20, "sigma": 0.5, "alpha": 1e-3, "consensus": 1.0, "tol": 1e-6, "random_state": 0}


def test_censoring_saves_messages_and_ends_at_the_same_place():
    X, y, sites = make_sites(random_state=0)
    every, censored = (DeKRRRegressor(**CENSORED, censor_start=start).fit(X, y, sites=sites) for start in (0.0, 1.0))
    saved = censored.traffic_.messages_by_kind["Unchanged"]
    assert every.traffic_.messages_by_kind["Unchanged"] == 0
    assert saved > 0
    assert censored.rse(X, y, sites=sites) == pytest.approx(every.rse(X, y, sites=sites), rel=1e-3)


def test_unknown_precision():
    with pytest.raises(SettingsError, match="precision is 'half'; it must be one of"):
        Wire(precision="half")


@pytest.mark.parametrize(("start", "decay", "settles"), [(1.0, 0.8, True), (100.0, 0.99, False), (100.0, 1.0, False)])
def test_silence_is_not_taken_for_convergence(start, decay, settles):
    X, y, sites = make_sites(random_state=0)
    every = DeKRRRegressor(**CENSORED).fit(X, y, sites=sites)
    censored = DeKRRRegressor(**CENSORED, censor_start=start, censor_decay=decay, max_rounds=150)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        censored.fit(X, y, sites=sites)
    assert settles != any(issubclass(warning.category, ConvergenceWarning) for warning in told)
    assert settles == (censored.objective_ == pytest.approx(every.objective_, rel=1e-6))
