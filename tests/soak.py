"""Runs under seeded faults, checked: never a hang, never a wrong answer.

python tests/soak.py 5000        # seeds 0 to 4999
python tests/soak.py --seed 17   # one seed again, with all that happened
"""

import argparse
import hashlib
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from multiprocessing import Pool
from unittest import mock

import msgspec
import networkx as nx
import numpy as np

from dekrr.mesh.after_loss import guarded
from dekrr.mesh.reading import MessageReader
from dekrr.mesh.session import Plan, Session
from dekrr.mesh.session.links import ends
from dekrr.messages import encode
from dekrr.networks.local import LocalNetwork
from dekrr.privacy.masks import Identity, derived_secret
from dekrr.protocols import dekrr
from dekrr.protocols.baselines import allreduce, dkla
from dekrr.protocols.site import Kept, Site
from dekrr.selection import Energy, Greedy, Plain
from dekrr.settings import WIRE_PRECISIONS as PRECISIONS
from dekrr.settings import AllReduceSettings, DeKRRSettings, DKLASettings, Wire
from dekrr.tables.rows import ArrayRows
from faulty import FaultyNetwork, draw_faults

PATIENCE = 10.0
UNGUARDED = {"scale": "minmax", "min_rows": 1, "rows_per_feature": 0, "max_leverage": 1}
SETTINGS = DeKRRSettings(tol=1e-3, max_rounds=12, **UNGUARDED)
METHODS = {
    "dkla": (dkla.train, DKLASettings(tol=1e-3, max_rounds=12, **UNGUARDED)),
    "allreduce": (allreduce.train, AllReduceSettings(**UNGUARDED)),
}


def quiet(text):
    """Say nothing: a site that is another's only neighbour is told so, and most of these graphs have one."""


class Problem:
    """A small random graph of sites with a few rows each, and how its sites make their procedures.

    One in four has the rows and the settings of a deployment, whose guards would refuse so few rows.
    """

    def __init__(self, seed):
        rng = np.random.default_rng([seed, 0])
        self.seed = seed
        n_sites = int(rng.integers(2, 7))
        self.names = [f"s{i}" for i in range(n_sites)]
        shape = rng.choice(["path", "ring", "complete", "star"])
        graphs = {"path": nx.path_graph, "ring": nx.cycle_graph, "complete": nx.complete_graph}
        graph = nx.star_graph(n_sites - 1) if shape == "star" else graphs[shape](n_sites)
        self.graph = nx.relabel_nodes(graph, dict(enumerate(self.names)))
        self.graph.remove_edges_from(nx.selfloop_edges(self.graph))
        self.method = str(rng.choice(["dekrr", "dekrr", "dkla", "allreduce"]))
        make_selector = (Energy, Greedy, Plain)[int(3 * rng.uniform())]
        draw = np.random.default_rng([seed, 1]).choice
        self.selector = make_selector(4, mapping=str(draw(["cos", "cossin"], p=[0.8, 0.2])))
        self.settings = msgspec.structs.replace(
            SETTINGS, verify_features=bool(draw([True, False])), allocation=str(draw(["equal", "sqrt"]))
        )
        self.most_named = int(draw([256, 3, 1], p=[0.6, 0.2, 0.2]))  # sites; more are counted by a census
        guarded = draw([True, False], p=[0.25, 0.75])
        if guarded:
            wire = Wire(precision=str(draw(PRECISIONS)), censor_start=float(draw([0.0, 0.01])))
            self.settings = DeKRRSettings(tol=1e-3, max_rounds=12, allocation=self.settings.allocation, wire=wire)
        # What sites do when one is lost after masked sums. Only neighbours are refused as well.
        hides = min(dict(self.graph.degree).values()) > 1 or (self.method == "allreduce" and n_sites > 2)
        lone = str(draw(["refuse", "warn"])) if hides else "warn"
        self.refuses = lone == "refuse" and self.method != "dkla"
        self.kept = {}
        self.rows = {}
        for name in self.names:
            n_rows = int(rng.integers(60, 120) if guarded else rng.integers(5, 12))
            self.rows[name] = rng.uniform(size=(n_rows, 2)), rng.uniform(-1, 1, size=n_rows)

    def make(self, name, neighbors, offer, identity=None, kept=None, keep_path=False, **changes):
        site = Site(name, tuple(neighbors), ArrayRows(*self.rows[name]), seed=self.seed, tell=quiet)
        site = replace(site, identity=identity or Identity(), kept=kept or Kept())
        train, settings = METHODS.get(self.method, (dekrr.train, self.settings))
        changes = {"lone_neighbor": "refuse" if self.refuses else "warn"} | changes
        settings = msgspec.structs.replace(settings, **{k: v for k, v in changes.items() if hasattr(settings, k)})
        if self.method == "dekrr" and offer is not None:
            site = dekrr.with_features(site, offer, self.selector, settings)
        more = {"keep_path": True} if keep_path and self.method == "dekrr" else {}
        return guarded(site, lambda: train(site, self.selector, settings, **more), settings)

    def open_session(self, name, journal, observe):
        plan = Plan(
            run=f"run {self.seed}",
            name=name,
            neighbors=tuple(self.graph[name]),
            sites=frozenset(self.names),
            terms={"method": self.method},
            digest=name,
            origin=hashlib.sha256(b"".join(part.tobytes() for part in self.rows[name])).hexdigest(),
            patience=PATIENCE,
            start_patience=20 * PATIENCE,
        )

        def make(neighbors, offer):
            """Make the procedure of an epoch, with a key that the site has again when it comes back."""
            lost = sorted(session.lost)
            kept.epoch = ", ".join(lost)
            identity = Identity(f"run {self.seed} without {lost}", derived_secret(name.encode(), *lost))
            return self.make(name, neighbors, offer, identity, kept)

        # A site that comes back knows whether it had sent masked words, and not what it had reached.
        before, kept = self.kept.get(name), Kept()
        kept.summed_in = before.summed_in if before is not None else None
        self.kept[name] = kept
        session = Session(plan, make, MessageReader(), journal, observe)
        return session


def run_seed(seed):
    """Run one seed; return what was injected and how the run ended, or raise AssertionError."""
    problem = Problem(seed)
    with mock.patch("dekrr.protocols.roll_call._MOST_NAMED", problem.most_named):
        return _run(problem, seed)


def _run(problem, seed):
    faults = draw_faults(problem.names, list(problem.graph.edges), PATIENCE, seed)
    network = FaultyNetwork(problem.graph, problem.open_session, faults, seed)
    endings = network.run()
    assert not network.hung, f"seed {seed}: {network.hung} never ended"
    _check_answers(problem, network)
    _check_agreement(problem, network)
    _check_features(problem, faults, network)
    _check_liveness(problem, faults, endings, seed)
    return network.injected, _kind_of_ending(problem, endings), endings


def _check_answers(problem, network):
    """Every model equals that of an undisturbed run without masks and the gone sites, from the same features."""

    # On a lossy wire a site estimates what its neighbours cannot see, and under masks it knows half of it: it may stop
    # in another round. The reference then has masks too, under other keys.
    lossy = problem.settings.wire != Wire()

    @cache
    def reference(gone, lost):
        graph = problem.graph.subgraph([name for name in problem.names if name not in gone]).copy()
        graph.remove_edges_from(map(ends, lost))
        offers = {name: network.offers.get((lost, name)) for name in graph}
        make = problem.make if lossy else partial(problem.make, masks=False)
        return LocalNetwork(graph).run({name: make(name, graph[name], offers[name], keep_path=True) for name in graph})

    # Neighbours are in another order there, and what is rounded on the wire may be rounded the other way.
    tolerance = 1e-9 if problem.settings.wire.precision == "double" else 1e-6
    for name, ending in network.endings.items():
        if ending.outcome is None:
            continue
        # Where all sums were formed before a loss, the model is that of all sites, after the rounds until then.
        is_kept = problem.refuses and problem.kept[name].has_sent
        gone, lost = (frozenset(), frozenset()) if is_kept else (ending.gone, ending.lost)
        expected = reference(gone, lost)[name]
        network.injected["kept models"] += is_kept
        assert set(ending.outcome.roster.rows) == set(expected.roster.rows), f"seed {problem.seed}: roster of {name}"
        # Such sites also end the rounds when there are as many as features.
        ends_early = problem.refuses and expected.path
        coefficients = expected.path[ending.outcome.rounds] if ends_early else expected.coefficients
        np.testing.assert_allclose(
            ending.outcome.coefficients,
            coefficients,
            rtol=0,
            atol=tolerance * max(1.0, float(np.abs(coefficients).max())),
            err_msg=f"seed {problem.seed}: site {name} without {sorted(ending.gone)}",
        )


def _check_agreement(problem, network):
    """Sites whose results were confirmed have them for the same problem."""
    if network.unconfirmed:
        return
    gone = {name: ending.lost for name, ending in network.endings.items() if ending.outcome is not None}
    for one, two in combinations(gone, 2):
        assert gone[one] == gone[two], (
            f"seed {problem.seed}: {one} is without {sorted(gone[one])}, {two} without {sorted(gone[two])}"
        )


def _check_features(problem, faults, network):
    """A site keeps its features from epoch to epoch."""
    if problem.method != "dekrr":
        return
    forgetful = {crash.site for crash in faults.crashes if crash.forgets or crash.torn}
    chosen = {key: encode(msgspec.structs.replace(offer, n_neighbors=1)) for key, offer in network.offers.items()}
    for (gone, name), later in chosen.items():
        for (before, other), earlier in chosen.items():
            if name == other and before < gone and name not in forgetful:
                assert later == earlier, f"seed {problem.seed}: {name} changed its features between {before} and {gone}"


def _check_liveness(problem, faults, endings, seed):
    """Faults that are over well within the patience leave the run as it would have been."""
    mild = all(crash.back is not None and crash.back - crash.at < PATIENCE / 2 for crash in faults.crashes)
    mild &= all(outage.end - outage.start < PATIENCE / 2 for outage in faults.outages)
    mild &= len(faults.crashes) <= 1 and len(faults.outages) <= 1
    if mild:
        for name in problem.names:
            assert name in endings, f"seed {seed}: {name} did not end"
            assert endings[name].outcome is not None, f"seed {seed}: {name} ended with {endings[name].error!r}"
            assert not endings[name].gone, f"seed {seed}: {name} lost {sorted(endings[name].gone)}"


def _kind_of_ending(problem, endings):
    finished = [ending for ending in endings.values() if ending.outcome is not None]
    if len(finished) == len(problem.names) and not any(ending.gone for ending in finished):
        return "undisturbed"
    if finished:
        return "without some sites"
    return "declared failure"


def _try_seed(seed):
    try:
        injected, kind, endings = run_seed(seed)
    except Exception as error:
        return seed, Counter(), "FAILED", Counter(), f"{type(error).__name__}: {error}"
    errors = Counter(type(ending.error).__name__ for ending in endings.values() if ending.error)
    return seed, injected, kind, errors, ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", nargs="?", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.seed is not None:
        problem = Problem(arguments.seed)
        print(draw_faults(problem.names, list(problem.graph.edges), PATIENCE, arguments.seed))
        for part in run_seed(arguments.seed):
            print(part)
        return
    start = time.monotonic()
    seeds = range(arguments.first, arguments.first + arguments.count)
    injected, kinds, errors = Counter(), Counter(), Counter()
    with Pool(arguments.workers) as pool:
        for seed, faults, kind, site_errors, text in pool.imap_unordered(_try_seed, seeds, chunksize=20):
            injected += faults
            kinds[kind] += 1
            errors += site_errors
            if text:
                print(f"seed {seed} failed: {text}\n  again: python tests/soak.py --seed {seed}", flush=True)
    print(f"{len(seeds)} seeds in {time.monotonic() - start:.0f} s")
    print("faults injected:", dict(sorted(injected.items())))
    print("runs:", dict(sorted(kinds.items())))
    print("sites that ended with an error:", dict(sorted(errors.items())))
    sys.exit(1 if kinds["FAILED"] else 0)


if __name__ == "__main__":
    main()
