"""A fit that one can watch: events, the terminal, the log, the summary, and pictures."""

import io
import logging
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from dekrr import CentralizedKRR, DataError, DeKRRRegressor, LocalRegressor, plot
from dekrr.data import make_sites
from dekrr.estimators.network import FitEvent, TerminalLine, callbacks_of

X, y, SITES = make_sites(n_sites=4, random_state=0)
SMALL = {"n_features": 8, "alpha": 1e-4, "consensus": 1.0, "random_state": 0}


def test_callbacks_see_all_stages_and_change_nothing():
    events: list[FitEvent] = []
    settings = SMALL | {"sigma": [0.3, 1.0], "folds": 2}
    watched = DeKRRRegressor(**settings, callbacks=[events.append]).fit(X, y, sites=SITES)
    silent = DeKRRRegressor(**settings).fit(X, y, sites=SITES)
    np.testing.assert_allclose(watched.predict(X, sites=SITES), silent.predict(X, sites=SITES), rtol=1e-12)
    assert {event.stage for event in events} >= {"roll call", "scales", "choosing features", "sums over rows", "rounds"}
    assert events[-1].stage == "done"
    assert [event.part for event in events] == sorted(event.part for event in events)
    assert {event.parts for event in events if event.part} == {6}  # two bandwidths in two folds, all rows, intervals
    assert events[-2].part == 6
    rounds = [event for event in events if event.stage == "rounds" and event.part == 5]
    assert rounds[-1].round == watched.n_rounds_ + 1 or rounds[-1].round == watched.n_rounds_
    assert rounds[-1].residual < 1e-4
    assert 0 <= events[-2].seconds_left < np.inf
    assert np.isnan(FitEvent("scales", 3).seconds_left)
    assert LocalRegressor(n_features=5, callbacks=[events.append]).fit(X, y, sites=SITES).n_rounds_ == 0


@pytest.mark.parametrize("settings", [{}, {"masks": True}, {"scale": "quantiles", "masks": True}])
def test_stages_of_a_default_fit_are_told_as_they_are(settings):
    events: list[FitEvent] = []
    fitted = DeKRRRegressor(random_state=0, callbacks=[events.append], **settings).fit(X, y, sites=SITES)
    stages = [event.stage for event in events]
    seen = list(dict.fromkeys(stages))
    first = ["roll call", "scales", "column scales", "shared part", "choosing features", "sums over rows", "rounds"]
    assert [stage for stage in seen if stage in first] == first
    assert {"held-out rows", "done"} <= set(seen)
    assert stages.count("scales") < 0.3 * len(stages)
    assert events[-1].part == events[-1].parts == 2
    rounds = [event.round for event in events if event.stage == "rounds" and event.part == 1]
    assert rounds[-1] in (fitted.n_rounds_, fitted.n_rounds_ + 1)


def test_what_comes_before_training_is_told():
    events: list[FitEvent] = []
    words = pd.DataFrame(X, columns=["a", "b", "c"]).assign(d=np.where(X[:, 0] > 0.5, "high", "low"))
    DeKRRRegressor(**SMALL, callbacks=[events.append]).fit(words, y, sites=SITES)
    seen = list(dict.fromkeys(event.stage for event in events))
    there = [stage for stage in seen if stage in ("columns", "looking at rows", "scales", "done")]
    assert there == ["columns", "looking at rows", "scales", "done"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_one_line(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    DeKRRRegressor(**SMALL, sigma=0.3, verbose=1).fit(X, y, sites=SITES)
    assert terminal.getvalue().count("\n") == 1
    assert "fit: done after" in terminal.getvalue().rsplit("\r", 1)[1]
    assert isinstance(callbacks_of(1, None)[0], TerminalLine)


def test_elsewhere_the_log_gets_stages(caplog):
    with caplog.at_level(logging.INFO, logger="dekrr"):
        DeKRRRegressor(**SMALL, sigma=0.3).fit(X, y, sites=SITES)
        assert not caplog.messages
        DeKRRRegressor(**SMALL, sigma=0.3, verbose=1).fit(X, y, sites=SITES)
    assert any("rounds" in message for message in caplog.messages)
    assert "done" in caplog.messages[-1]
    assert len(caplog.messages) < 12


def test_wrong_callbacks():
    with pytest.raises(ValueError, match="a sequence of functions, or None"):
        DeKRRRegressor(callbacks=[3]).fit(X, y, sites=SITES)
    assert clone(DeKRRRegressor(verbose=1)).verbose == 1


def test_summary():
    tuned = DeKRRRegressor(**SMALL | {"alpha": [1e-4, 1e-3]}, sigma=0.3).fit(X, y, sites=SITES)
    text = str(tuned.fit_summary())
    for word in ("DeKRRRegressor", f"4, with {len(X)} rows", "sigma 0.3", "(tuned)", "error by tuning", "station 03"):
        assert word in text
    assert "<td>station 03</td>" in tuned.fit_summary()._repr_html_()
    assert "CentralizedKRR" in repr(CentralizedKRR().fit(X, y, sites=SITES).fit_summary())


def test_pictures():
    regressor = DeKRRRegressor(**SMALL, sigma=0.3).fit(X, y, sites=SITES)
    assert plot.convergence(regressor).lines
    assert plot.sites(regressor, X, y, SITES).texts
    assert f"{regressor.rse(X, y, sites=SITES):.3f}" in plot.predicted(regressor, X, y, SITES).get_title()
    traffic = plot.traffic(regressor)
    drawn = np.nan_to_num(np.asarray(traffic.images[0].get_array().filled(0)))
    assert drawn.sum() * 1e3 == pytest.approx(regressor.traffic_.total_bytes)
    if not hasattr(regressor, "column_scales_"):
        with pytest.raises(DataError, match="no column scales"):
            plot.scales(regressor)
    regressor.column_scales_ = np.array([1.0, 0.5, 0.1])
    assert len(plot.scales(regressor).patches) == 3
