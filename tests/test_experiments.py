import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise

import joblib
import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_rel
from typer.testing import CliRunner

from conftest import write_made_up_sets
from dekrr import AllReduceRegressor, DeKRRRegressor, DKLARegressor
from dekrr.cli.app import app
from dekrr.data import authors_split, make_sites
from dekrr.errors import DataError, SettingsError
from dekrr.lab.commands.reproduce import command_line
from dekrr.lab.data_sets.splits import Split
from dekrr.lab.experiments import fits, paper_tables
from dekrr.lab.experiments.fits import (
    ALPHAS,
    SIGMAS,
    FitProblem,
    FitTask,
    choose_kernel,
    curves_of,
    problem_of,
    recorded_rounds,
)
from dekrr.lab.experiments.plans import EXPERIMENTS, Options, plan
from dekrr.lab.experiments.running import RESULTS, Results, execute, task_of
from dekrr.selection import Energy, Greedy
from dekrr.settings import ALONE


@pytest.fixture(scope="module")
def small_data(tmp_path_factory):
    """A data directory with made-up sets of 400 rows under the names of real ones."""
    folder = tmp_path_factory.mktemp("data")
    write_made_up_sets(folder, 400)
    return folder


def small_split(n_sites=6, seed=0):
    parts = []
    for part in (0, 1):
        X, y, names = make_sites(n_sites, rows_per_site=40, random_state=seed + part)
        sites = np.array([int(name.split()[1]) for name in names])
        parts += [X, y, sites]
    return Split(*parts)


def a_task(**changes):
    task = FitTask(
        experiment="table",
        data="houses",
        partition="response",
        protocol="paper",
        splits="own",
        n_sites=6,
        n_neighbors=4,
        mix=0.2,
        n_rows=0,
        n_features=12,
        method="DeKRR-DDRF",
        solver="",
        allocation="equal",
        max_rounds=300,
        repetition=0,
        seed=0,
    )
    return msgspec.structs.replace(task, **changes)


# --- tuning against the estimator


@settings(max_examples=8, deadline=None)
@given(
    st.integers(3, 8),
    st.sampled_from([Energy(10, sigma=0.3), Greedy(10, sigma=0.3, shortlist=1.0)]),
    st.floats(0.1, 8),
    st.integers(0, 2**16),
)
def test_the_shortcut_gives_the_estimators_coefficients(n_sites, selector, c, seed):
    split = small_split(n_sites, seed)
    neighbors = fits.ring_neighbors(split)
    sites = [fits.ArrayRows(split.X[split.sites == j], split.y[split.sites == j]) for j in range(n_sites)]
    maps = fits.choose_features(sites, neighbors, [selector] * n_sites, random_state=seed)
    (solution,) = fits.solve_network(sites, maps, neighbors, 1e-3, [c])
    regressor = DeKRRRegressor(
        n_features=10,
        features=selector,
        sigma=0.3,
        alpha=1e-3,
        consensus=c,
        scale=None,
        tol=1e-12,
        max_rounds=20000,
        min_rows=1,
        random_state=seed,
        **ALONE,
    ).fit(split.X, split.y, sites=split.sites)
    for j in range(n_sites):
        np.testing.assert_array_equal(regressor.models_[j].feature_map.frequencies, maps[j].frequencies)
        np.testing.assert_allclose(regressor.models_[j].coefficients, solution[j], atol=1e-6)


def test_cross_validation_scores_what_refitting_scores():
    split = small_split()
    selector = Greedy(8, sigma=0.3, shortlist=1.0)
    selectors = [selector] * split.n_sites
    weights = [0.5, 4.0]
    scored = fits.cross_validate(
        split, selectors, weights, alpha=1e-3, prediction="neighborhood", shuffle=False, random_state=3
    )
    for c in weights:
        total = 0.0
        for k in range(fits.N_FOLDS):
            held_out = np.zeros(len(split.y), dtype=bool)
            for j in range(split.n_sites):
                at = np.flatnonzero(split.sites == j)
                held_out[at[fits.folds_of(len(at), shuffle=False, seed=3)[k]]] = True
            regressor = DeKRRRegressor(
                n_features=8,
                features=selector,
                sigma=0.3,
                alpha=1e-3,
                consensus=c,
                prediction="neighborhood",
                scale=None,
                tol=1e-12,
                max_rounds=20000,
                min_rows=1,
                random_state=fits.fold_seed(3, k),
                **ALONE,
            ).fit(split.X[~held_out], split.y[~held_out], sites=split.sites[~held_out])
            predicted = regressor.predict(split.X[held_out], sites=split.sites[held_out])
            total += np.sum((predicted - split.y[held_out]) ** 2)
        assert scored[c] == pytest.approx(total / len(split.y), rel=1e-6)


@given(st.integers(5, 200), st.booleans(), st.integers(0, 100))
def test_folds_divide_the_rows(n_rows, shuffle, seed):
    folds = fits.folds_of(n_rows, shuffle=shuffle, seed=seed)
    assert sorted(np.concatenate(folds).tolist()) == list(range(n_rows))
    if not shuffle:
        assert all(a[-1] < b[0] for a, b in pairwise(folds))


def test_the_kernel_is_chosen_by_the_error_of_a_plain_ridge():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(600, 2))
    smooth = choose_kernel(X, np.sin(X.sum(axis=1)) + 0.001 * rng.normal(size=600), 0)
    rough = choose_kernel(X, np.sin(18 * X[:, 0]) + 0.001 * rng.normal(size=600), 0)
    noise = choose_kernel(X, rng.normal(size=600), 0)
    assert smooth[0] > rough[0]
    assert rough[0] == min(SIGMAS)
    assert noise[1] == max(ALPHAS)


# --- problems and methods


def test_honest_scaling_and_tuning_see_training_rows_only(small_data):
    honest, paper = (problem_of(a_task(protocol=protocol), small_data).split for protocol in ("honest", "paper"))
    assert honest.X.min() == 0
    assert honest.X.max() == 1
    assert honest.X_test.min() < 0 or honest.X_test.max() > 1
    assert min(paper.X.min(), paper.X_test.min()) == 0
    assert max(paper.X.max(), paper.X_test.max()) == 1
    assert (paper.X.min(axis=0) > 0).any()


def test_the_paper_keeps_its_split_and_honest_repetitions_draw_new_ones(small_data):
    def ys(protocol, repetition):
        return problem_of(a_task(protocol=protocol, repetition=repetition), small_data).split.y

    np.testing.assert_array_equal(ys("paper", 0), ys("paper", 1))
    assert not np.array_equal(ys("honest", 0), ys("honest", 1))


def test_sqrt_allocation_is_the_estimators(small_data):
    task = a_task(partition="imbalanced", allocation="sqrt", method="ours", n_features=10)
    problem = problem_of(task, small_data)
    regressor = fits.make_estimator(task, problem, 1.0)
    regressor.fit(problem.split.X, problem.split.y, sites=problem.split.sites)
    sizes = [regressor.models_[j].feature_map.n_features for j in range(6)]
    assert sizes == [selector.n_features for selector in fits.selectors_of(task, problem)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_dkla_is_where_all_reduce_is(data_directory):
    split = authors_split("airquality", data_directory)
    sigma, alpha = split.kernel
    shared = {"n_features": 70, "sigma": sigma, "alpha": alpha, "scale": None, "n_neighbors": 4, "random_state": 0}
    dkla, exact = (
        model.fit(split.X, split.y, sites=split.sites).rse(split.X_test, split.y_test, sites=split.test_sites)
        for model in (DKLARegressor(**shared, tol=0.0, max_rounds=1500), AllReduceRegressor(**shared))
    )
    assert dkla == pytest.approx(exact, abs=1e-3)


def test_energy_features_on_an_authors_split_give_the_authors_error(data_directory):
    tasks = [
        a_task(data="airquality", splits="authors", n_features=70, n_sites=10, max_rounds=1500, repetition=r)
        for r in range(3)
    ]
    rows = [fits.fit_task(task, data_directory)[0] for task in tasks]
    theirs, spread = rows[0]["authors_rse"], rows[0]["authors_std"]
    assert theirs == pytest.approx(0.0907, abs=1e-4)
    assert abs(np.mean([row["own_rse"] for row in rows]) - theirs) < 2 * spread


@pytest.mark.parametrize(
    ("name", "experiment", "n_sites", "n_neighbors", "sizes"),
    [
        ("houses", "norm", 10, 4, {20, 40, 60, 80, 100, 120}),
        ("airquality", "imbalanced", 6, 2, {30, 50, 70, 90, 110, 130}),
        ("airquality", "per-site", 6, 2, {80}),
    ],
)
def test_experiments_take_the_authors_other_divisions(data_directory, name, experiment, n_sites, n_neighbors, sizes):
    options = Options(data=(name,), protocol="paper", splits="authors", repeats=1, methods=("DeKRR-DDRF",))
    tasks = plan(experiment, options, data_directory)
    assert {task.splits for task in tasks} == {"authors"}
    assert {task.n_features for task in tasks} == sizes
    split = problem_of(tasks[0], data_directory).split
    assert split.n_sites == tasks[0].n_sites == n_sites
    assert split.n_neighbors == tasks[0].n_neighbors == n_neighbors
    if experiment != "per-site":  # whose file has each site's error, and no error over all rows
        assert set(split.authors) == {"DeKRR-DDRF", "DKLA"}


@pytest.mark.slow
def test_the_paper_protocol_meets_the_authors_figures(data_directory):
    agree = total = 0
    for data, n_features in (("houses", 60), ("airquality", 70), ("energy", 90)):
        for method in ("DeKRR-DDRF", "DKLA"):
            task = a_task(
                data=data, splits="authors", n_features=n_features, method=method, n_sites=10, max_rounds=1500
            )
            rows = [fits.fit_task(msgspec.structs.replace(task, repetition=r), data_directory)[0] for r in range(10)]
            ours = paper_tables.Mean.of(np.array([row["own_rse"] for row in rows]))
            agree += not paper_tables.off(ours, rows[0]["authors_rse"], rows[0]["authors_std"] / np.sqrt(10))
            total += 1
    assert total == 6
    assert agree >= 5


# --- plans, results and runs


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("quick", [False, True])
def test_plans_have_no_task_twice(name, quick, small_data):
    tasks = plan(name, Options(quick=quick), small_data)
    assert len({task.key for task in tasks}) == len(tasks)
    assert {task.experiment for task in tasks} == {name}


def test_the_main_table_is_the_papers(small_data):
    tasks = plan("table", Options(), small_data)
    assert len(tasks) == 5 * 4 * 10
    assert {(t.data, t.n_features) for t in tasks} == {
        ("houses", 70),
        ("airquality", 80),
        ("energy", 100),
        ("twitter13813", 130),
        ("tomshardware", 150),
    }
    assert {t.mix for t in tasks if t.data == "energy"} == {0.75}
    assert {t.mix for t in tasks if t.data != "energy"} == {0.2}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"protocol": "sloppy"}, "'sloppy' is unknown; choose one of honest, paper"),
        ({"splits": "authors"}, "use them with protocol"),
        ({"methods": ("FedAvg",)}, "unknown method 'FedAvg'"),
        ({"data": ("moon",)}, "no settings for 'moon'"),
    ],
)
def test_options_are_checked(settings, words, small_data):
    with pytest.raises(SettingsError, match=words):
        plan("table", Options(**settings), small_data)


def test_commands_say_what_differs_from_the_defaults():
    options = Options(methods=("ours",), repeats=3, splits="authors", protocol="paper")
    wanted = "dekrr reproduce norm --method ours --repeats 3 --protocol paper --splits authors"
    assert command_line("norm", options) == wanted


def few_tasks():
    options = Options(data=("houses",), protocol="paper", quick=True, repeats=1)
    return [msgspec.structs.replace(task, n_features=8, max_rounds=20) for task in plan("table", options)]


def test_a_second_run_repeats_nothing(small_data, tmp_path):
    results = Results(tmp_path)
    assert execute(few_tasks(), results, directory=small_data) == 4
    before = (tmp_path / RESULTS).read_bytes()
    again = Results(tmp_path)
    assert execute(few_tasks(), again, directory=tmp_path / "no data needed") == 0
    assert (tmp_path / RESULTS).read_bytes() == before
    frame = pd.read_parquet(tmp_path / RESULTS)
    assert len(frame) == 4
    assert {"own_rse", "union_rse", "seed", "sigma", "consensus", "dekrr", "numpy"} <= set(frame.columns)


def test_another_experiments_fit_is_taken_over(small_data, tmp_path):
    results = Results(tmp_path)
    execute(few_tasks(), results, directory=small_data)
    same = [msgspec.structs.replace(task, experiment="response") for task in few_tasks()]
    assert execute(same, results, directory=small_data) == 0
    assert len(results.rows) == 8


def test_rows_of_other_versions_are_done_again(small_data, tmp_path):
    results = Results(tmp_path)
    task = few_tasks()[2]
    execute([task], results, directory=small_data)
    results.add(task, {**results.rows[0], "dekrr": "0.0.1"}, 1.0)
    assert Results(tmp_path).waiting([task]) == [task]


def test_the_order_and_number_of_jobs_do_not_matter(small_data, tmp_path):
    for name, tasks, jobs in (("a", few_tasks(), 1), ("b", few_tasks()[::-1], 2)):
        execute(tasks, Results(tmp_path / name), directory=small_data, jobs=jobs)
    assert (tmp_path / "a" / RESULTS).read_bytes() == (tmp_path / "b" / RESULTS).read_bytes()


def test_a_backend_that_gives_results_in_batches_works_too(small_data, tmp_path):
    with joblib.parallel_config(backend="multiprocessing"):
        execute(few_tasks()[:2], Results(tmp_path), directory=small_data, jobs=2)
    assert len(Results(tmp_path).rows) == 2


def test_two_runs_do_not_write_to_one_folder(small_data, tmp_path):
    def start_another(task, left):
        with pytest.raises(SettingsError, match="another run is writing"):
            execute(few_tasks(), Results(tmp_path), directory=small_data)

    execute(few_tasks()[:1], Results(tmp_path), directory=small_data, after_each=start_another)
    assert execute(few_tasks(), Results(tmp_path), directory=small_data) == 3


def test_damaged_results_are_named(tmp_path):
    (tmp_path / RESULTS).write_bytes(b"no parquet")
    with pytest.raises(DataError, match="damaged"):
        Results(tmp_path)


def reproduce(out, small_data, *, jobs=2):
    names = [
        "reproduce",
        "table",
        "--data",
        "houses",
        "--quick",
        "--repeats",
        "4",
        "--protocol",
        "paper",
        "--out",
        str(out),
    ]
    return [*names, "--jobs", str(jobs), "--data-dir", str(small_data)]


def process(arguments):
    """Return the command line of a process of its own."""
    return [sys.executable, "-c", "from dekrr.cli import main; main()", *arguments]


def killed_after(command, out, n_more, deadline=120):
    """Start a run, and kill it with all its workers once it has kept `n_more` fits; False if it ended before."""
    before = len(Results(out).rows)
    started = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + deadline
    try:
        while time.monotonic() < end:
            if started.poll() is not None:
                return False
            if len(Results(out).rows) >= before + n_more:
                return True
            time.sleep(0.02)
        raise AssertionError("the run did not get anywhere")
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def test_killed_interrupted_and_started_again_it_ends_with_the_same_file(small_data, tmp_path):
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    whole = CliRunner().invoke(app, reproduce(undisturbed, small_data, jobs=1), catch_exceptions=False)
    assert "results:" in whole.output
    command = process(reproduce(disturbed, small_data))
    assert [killed_after(command, disturbed, n_more) for n_more in (0, 1)] == [True, True]
    before = len(Results(disturbed).rows)
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while len(Results(disturbed).rows) == before and started.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    started.send_signal(signal.SIGINT)
    _, words = started.communicate(timeout=120)
    assert started.returncode == 130
    assert "the same command continues from there" in " ".join(words.split())
    assert before < len(Results(disturbed).rows) < len(Results(undisturbed).rows) == 16
    CliRunner().invoke(app, reproduce(disturbed, small_data, jobs=1), catch_exceptions=False)
    assert (disturbed / RESULTS).read_bytes() == (undisturbed / RESULTS).read_bytes()


# --- curves


@pytest.mark.parametrize(
    ("method", "solver"), [("DeKRR-DDRF", "jacobi"), ("ours", "chebyshev"), ("DKLA", ""), ("DKLA-DDRF", "")]
)
def test_curves_end_where_the_estimator_ends(method, solver, small_data):
    task = a_task(experiment="convergence", method=method, solver=solver, max_rounds=60)
    problem = problem_of(task, small_data)
    consensus = None if method.startswith("DKLA") else 1.0
    curve = curves_of(task, problem, consensus)
    regressor = fits.make_estimator(task, problem, consensus).set_params(tol=0.0)
    split = problem.split
    regressor.fit(split.X, split.y, sites=split.sites)
    test = split.X_test, split.y_test, split.test_sites
    assert curve["curve_round"] == list(range(61))
    np.testing.assert_allclose(curve["curve_objective"], regressor.history_["objective"], rtol=1e-10)
    assert curve["curve_own_rse"][-1] == pytest.approx(regressor.rse(*test), rel=1e-6)
    assert curve["curve_union_rse"][-1] == pytest.approx(regressor.rse(*test, metric="union"), rel=1e-6)
    steps = np.diff(curve["curve_bytes"])
    assert (steps > 0).all()
    a_residual_and_a_scale, n_messages = 18, len(regressor.traffic_.bytes)
    assert np.ptp(steps) <= 100 + 2 * n_messages * a_residual_and_a_scale
    assert curve["curve_bytes"][-1] <= regressor.traffic_.total_bytes
    if consensus is not None:
        assert curve["best_objective"] == pytest.approx(regressor.objective_, rel=1e-5)


@given(st.integers(1, 5000))
def test_recorded_rounds_start_at_the_start_and_end_at_the_end(n_rounds):
    rounds = recorded_rounds(n_rounds)
    assert rounds[0] == 0
    assert rounds[-1] == n_rounds
    assert (np.diff(rounds) > 0).all()


# --- tables


def made_up(method, values, data="houses", union=None, **more):
    base = msgspec.structs.asdict(a_task(data=data, method=method, n_features=70, n_sites=10))
    other = values if union is None else union
    return [
        {**base, "repetition": r, "own_rse": v, "union_rse": u, "consensus": 1.0, "authors_rse": None,
         "authors_std": None, "site_rows": [3, 4], **more}
        for r, (v, u) in enumerate(zip(values, other, strict=True))
    ]  # fmt: skip


def test_the_comparison_marks_what_is_off():
    rng = np.random.default_rng(0)
    near = 0.244 + 0.004 * rng.standard_normal(10)
    rows = [
        *made_up("DeKRR-DDRF", near - near.mean() + 0.2443, authors_rse=0.2440, authors_std=0.004),
        *made_up("DKLA", near + 0.2, authors_rse=0.334, authors_std=0.001),
    ]
    shown = {line[2].text: line for line in paper_tables._published(rows).rows}
    assert [shown["DeKRR-DDRF"][i].mark for i in (3, 4)] == ["", ""]
    assert [shown["DKLA"][i].mark for i in (3, 4)] == ["off", "off"]
    assert shown["DKLA"][3].text == "0.334"


@given(st.lists(st.floats(0.1, 1), min_size=3, max_size=12), st.integers(0, 1000))
@settings(max_examples=50)
def test_paired_tests_are_scipys(values, seed):
    a = np.array(values)
    b = a + np.random.default_rng(seed).normal(size=len(a))
    assert paper_tables.paired_p(a, b) == pytest.approx(ttest_rel(a, b).pvalue)


def test_who_is_better_depends_on_the_metric():
    rng = np.random.default_rng(0)
    noise = 0.001 * rng.standard_normal((2, 10))
    rows = [
        *made_up("DKLA-DDRF", 0.30 + noise[0], union=0.30 + noise[0]),
        *made_up("DeKRR-DDRF", 0.25 + noise[1], union=0.34 + noise[1]),
    ]
    (line,) = paper_tables._tests(rows).rows
    assert line[3].text.startswith("DeKRR-DDRF (")
    assert line[4].text.startswith("DKLA-DDRF (")
    gains = paper_tables._improvements(rows).rows[0]
    own, union = (float(cell.text.split()[0]) for cell in gains[2:4])
    assert own == pytest.approx(16.7, abs=0.5)
    assert union == pytest.approx(-13.3, abs=0.5)


def test_an_unfinished_table_says_so():
    rows = [*made_up("DKLA", np.array([0.3, 0.31, 0.32])), *made_up("ours", np.array([0.2, 0.21]))]
    assert "2 to 3 repetitions (unfinished), seed 0" in paper_tables._means(rows, "own").note
    assert ", 2 repetitions, seed 0" in paper_tables._means(rows[3:], "own").note
    other = [{**row, "data": "energy", "n_sites": 6} for row in rows[3:]]
    note = paper_tables._means([*rows[:3], *other], "own").note
    assert "10 sites, 4 neighbours each or 6 sites, 4" in note
    assert "2 to 3 repetitions, seed 0" in note  # sets differ, and each is finished


def test_rows_know_their_task(small_data, tmp_path):
    results = Results(tmp_path)
    execute(few_tasks()[:1], results, directory=small_data)
    assert task_of(results.rows[0]) == few_tasks()[0]
    assert isinstance(problem_of(few_tasks()[0], small_data), FitProblem)


def test_results_can_be_read_while_they_are_written(small_data, tmp_path):
    results = Results(tmp_path)
    execute(few_tasks(), results, directory=small_data)
    stop = threading.Event()

    def keep_saving():
        while not stop.is_set():
            results.save()

    writer = threading.Thread(target=keep_saving)
    writer.start()
    try:
        assert all(len(Results(tmp_path).rows) == 4 for _ in range(60))
    finally:
        stop.set()
        writer.join()
