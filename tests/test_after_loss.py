"""A site lost under masks, at any moment: what the others end with, and that nobody can have its sums."""

from dataclasses import replace
from functools import cache
from itertools import product

import networkx as nx
import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from dekrr.errors import LossError, SettingsError
from dekrr.mesh.after_loss import KeptOnDisk, guarded
from dekrr.mesh.files import parse_study, read_network
from dekrr.mesh.policy import Policy, refusals
from dekrr.metrics import rse
from dekrr.model import Header, load, model_of
from dekrr.networks.local import LocalNetwork
from dekrr.parts.local import constant_of, has_constant
from dekrr.privacy.masks import Identity
from dekrr.protocols import training
from dekrr.protocols.calibration import keep_intervals
from dekrr.protocols.masking import Masks
from dekrr.protocols.site import Kept, Site
from dekrr.protocols.training import SecondTraining
from dekrr.selection import Energy, Plain
from dekrr.settings import DeKRRSettings
from dekrr.tables.rows import ArrayRows
from faulty import Crash, Faults, FaultyNetwork, Outage
from meshes import Mesh
from soak import Problem

OPEN = {"scale": "minmax", "min_rows": 1, "rows_per_feature": 0, "max_leverage": 1, "max_rounds": 12, "tol": 0.0}
ALONE = dict.fromkeys(("shared", "site_effect", "local", "column_scales"))
PARTS = {"shared": 6, "local": None, "site_effect": None}
WITH_LOCAL = PARTS | {"local": LinearRegression()}
LOST = "s2"


class Run(Problem):
    """Five sites that all know each other, or those of a graph, and how they train."""

    def __init__(self, settings, selector=None, graph=None, *, looks=False):
        super().__init__(0)
        self.looks = looks
        graph = graph or nx.complete_graph(5)
        self.names = [f"s{i}" for i in range(len(graph))]
        self.graph = nx.relabel_nodes(graph, dict(enumerate(self.names)))
        self.settings, self.selector, self.kept, self.second = settings, selector or Plain(4), {}, None
        self.phase, self.seen, self.phases = "", set(), {}
        rng = np.random.default_rng(1)
        columns = {name: rng.uniform(size=(40, 2)) for name in self.names}
        self.rows = {name: (X, np.sin(4 * X[:, 0]) + rng.uniform(-0.5, 0.5, 40)) for name, X in columns.items()}

    def make_site(self, name):
        return Site(name, tuple(self.graph[name]), ArrayRows(*self.rows[name]), tell=lambda *text: None).in_order()

    def make(self, name, neighbors, offer, identity=None, kept=None):
        site = replace(self.make_site(name), neighbors=tuple(neighbors))
        site = replace(site, identity=identity or Identity(), kept=kept or Kept())
        if name == LOST:
            site = replace(site, enter=self.enter)

        def train():
            whole = site
            if self.looks:
                whole, _ = yield from training.look_first(site, self.settings)
            return (yield from training.train(whole, self.selector, self.settings, second=self.second))

        return guarded(site, train, self.settings)

    def enter(self, phase):
        """Note the phase that the site is in that will be lost; the second training goes through the same ones."""
        self.phase = "again " * (phase in self.seen) + phase
        self.seen.add(phase)

    def lose(self, at, lost=LOST):
        """Lose a site at a moment, or a link, which one of its ends may claim; return how the others ended."""
        faults = Faults(delay=0.3, crashes=(Crash(lost, at=float(at), back=None),))
        if isinstance(lost, tuple):
            faults = Faults(delay=0.3, outages=(Outage(lost, float(at), 1e6),))
        network = FaultyNetwork(self.graph, self.open_session, faults, 0)
        network.run()
        assert not network.hung
        return {name: ending for name, ending in network.endings.items() if name != lost}

    def undisturbed(self):
        """Return what sites end with where none is lost, and what each could have ended with on the way."""
        kept = {name: Kept() for name in self.names}
        sites = {name: self.make(name, self.graph[name], None, kept=kept[name]) for name in self.names}
        return LocalNetwork(self.graph).run(sites), {name: one.reached for name, one in kept.items()}


@pytest.fixture
def words(monkeypatch):
    """What every site has made of masked words, whether it arrived or not: by whose sum, number and epoch, by site."""
    made = {}

    def note(masks, centre, vector):
        site, number = masks._site, (masks._site.identity.context.endswith("looking"), masks._number)
        made.setdefault((centre, number, len(vector)), {})[site.kept.epoch, site.name] = vector

    hide, hide_over_tree = Masks.hide, Masks.hide_over_tree

    def noting(self, values, exponent):
        found = hide(self, values, exponent)
        for centre, vector in found.items():
            note(self, centre, vector)
        return found

    def noting_tree(self, values, n_sites):
        found = hide_over_tree(self, values, n_sites)
        note(self, "", found)
        return found

    monkeypatch.setattr(Masks, "hide", noting)
    monkeypatch.setattr(Masks, "hide_over_tree", noting_tree)
    return made


@cache
def signs(count):
    """All ways to add, subtract or leave out so many messages."""
    return np.array(list(product((0, 1, -1), repeat=count)), dtype=np.int64).view(np.uint64)


def single_sums(made):
    """Return how many combinations of the words for a sum are the sum of one site: their last words count sites."""
    found = 0
    for vectors in made.values():
        counts = (signs(len(vectors)) * np.array([vector[-1] for vector in vectors.values()])).sum(axis=1)
        found += int((np.abs(counts.view(np.int64)) == 1).sum())
    return found


def kinds_of(run, made, times, lost=LOST):
    """Lose a site at every moment, and return how often the others began anew, ended, or kept what was summed."""
    expected, on_the_way = run.undisturbed()
    kinds = dict.fromkeys(("anew", "ended", "at home", "shared part", "kept", "over"), 0)
    for at in times:
        made.clear()
        run.kept.clear()
        run.phase, run.seen = "roll call", set()
        endings = run.lose(at, lost)
        errors = [ending.error for ending in endings.values() if ending.error is not None]
        n_left = len(run.names) - (lost in run.names)
        assert len(endings) == n_left
        assert all(isinstance(error, LossError) for error in errors), errors
        assert len(errors) in (0, n_left), "some have a model, others do not"
        assert not single_sums(made), at
        sent = {(site, epoch) for vectors in made.values() for epoch, site in vectors}
        assert len(sent) == len({site for site, _ in sent}), "words of a site in two epochs"
        if errors:
            kinds["ended"] += 1
            run.phases.setdefault(run.phase, set()).add("ended")
            assert "after a loss" in str(errors[0])
            continue
        outcomes = {name: ending.outcome for name, ending in endings.items()}
        some = outcomes["s0"]
        kind = "over" if not endings["s0"].lost else "anew"
        if run.kept["s0"].has_sent:
            kind = "kept" if some.neighbor_maps else "at home" if some.shared is None else "shared part"
        kinds[kind] += 1
        run.phases.setdefault(run.phase, set()).add(kind)
        for name, outcome in outcomes.items():
            assert lost not in run.names or (lost in outcome.roster.rows) == (kind not in ("anew", "at home"))
            if kind == "kept":
                check_kept(outcome, expected[name])
            elif kind == "at home":
                assert outcome.home is not None
                assert outcome.shared is None
            elif kind == "shared part":
                (step,) = [i for i, one in enumerate(on_the_way["s0"]) if one and is_shared(one, some)]
                assert is_shared(on_the_way[name][step], outcome)
                check_pooled(run, outcome)
    return kinds


def is_shared(one, other):
    """Whether two outcomes have one shared part, and no agreed one."""
    theirs, ours = one.shared.coefficients, other.shared.coefficients
    alike = not one.neighbor_maps and theirs.shape == ours.shape
    return alike and np.allclose(theirs, ours, rtol=0, atol=1e-9)


def test_what_a_loss_leaves_is_a_model_like_others(tmp_path):
    """It can be saved, told of and passed on, before any model was summed as well."""
    run = Run(DeKRRSettings(**OPEN | PARTS | {"local": "auto", "scale": "quantiles"}))
    kept = {name: Kept() for name in run.names}
    outcomes = LocalNetwork(run.graph).run(
        {name: run.make(name, run.graph[name], None, kept=kept[name]) for name in run.names}
    )
    X, y = run.rows["s0"]
    header = Header(site="s0", method="DeKRRRegressor", kernel="gaussian", sigma=0.5, n_columns=2)
    nothing, *more = kept["s0"].reached
    assert nothing is None
    assert len(more) >= 3, "a model of column scales, the shared part, the rounds"
    for i, reached in enumerate((nothing, *more)):
        (outcome,) = ended(kept["s0"].at_home(reached, outcomes["s0"].roster))
        model = model_of(outcome, header, "neighborhood")
        model.save(tmp_path / f"{i}.safetensors")
        again = load(tmp_path / f"{i}.safetensors")
        np.testing.assert_allclose(again.predict(X), model.predict(X))
        assert rse(y, again.predict(X)) < 1
        assert np.isfinite(again.without_local().predict(X)).all()


def ended(procedure):
    """Return what a procedure returns that needs no exchange."""
    with pytest.raises(StopIteration) as caught:
        next(procedure)
    return caught.value.args


def check_pooled(run, outcome):
    """The shared part is the ridge regression of the pooled rows of all sites, or of those that were not held out."""
    assert outcome.home is not None
    found = []
    for fold in (None, 0, 1):
        rows = {name: run.make_site(name) for name in run.names}
        kept = {name: slice(None) if fold is None else site.fold_of(5) != fold for name, site in rows.items()}
        Z, y = (np.concatenate(each) for each in zip(*(_scaled(rows[n], outcome, kept[n]) for n in rows), strict=True))
        penalty = np.full(Z.shape[1], outcome.roster.n_rows * outcome.shared.ridge)
        if has_constant(outcome.shared.feature_map):
            penalty[constant_of(outcome.shared.feature_map)] = 0.0
        gram = Z.T @ Z + np.diag(penalty)
        found.append(np.abs(np.linalg.solve(gram, Z.T @ y) - outcome.shared.coefficients).max())
    assert min(found) < 1e-6


def _scaled(site, outcome, places):
    rows = site.rows.scaled(outcome.scaling).arrays()
    return outcome.shared.feature_map(rows.X[places]), rows.y[places]


def check_kept(outcome, expected):
    """The model is that of all sites: its shared part to the last bit, its agreed part after the rounds that it had."""
    if expected.shared is not None:
        np.testing.assert_allclose(outcome.shared.coefficients, expected.shared.coefficients, rtol=0, atol=1e-9)
        assert outcome.home is not None
    if outcome.rounds == expected.rounds:
        np.testing.assert_allclose(outcome.coefficients, expected.coefficients, rtol=0, atol=1e-9)
    assert np.isfinite(outcome.coefficients).all()
    assert outcome.feature_map.n_features == expected.feature_map.n_features


@pytest.mark.parametrize(
    ("settings", "last", "seen"),
    [
        (ALONE, 16.0, {"anew", "ended", "kept", "over"}),
        (PARTS, 46.0, {"anew", "ended", "shared part", "kept", "over"}),
        (WITH_LOCAL | {"scale": "quantiles"}, 60.0, {"anew", "at home", "shared part", "kept", "over"}),
    ],
    ids=["agreed part", "shared part", "all parts"],
)
def test_a_loss_at_any_moment_leaves_one_set_of_sums(settings, last, seen, words):
    run = Run(DeKRRSettings(**OPEN | settings, lone_neighbor="refuse"), Energy(4) if settings == ALONE else None)
    kinds = kinds_of(run, words, np.linspace(1.0, last, 18))  # the run takes about as long
    assert {kind for kind, count in kinds.items() if count} == seen, kinds


WHAT_IS_LEFT = {
    "roll call": {"anew"},
    "scales": {"anew", "at home"},
    "column scales": {"at home", "shared part"},
    "shared part": {"shared part"},
    "choosing features": {"shared part"},
    "sums over rows": {"shared part", "kept"},
    "local part": {"kept"},
    "again": {"kept"},
    "held-out rows": {"kept", "over"},
}


def test_whatever_the_phase_of_a_loss_all_others_end_with_the_model_of_what_was_summed(words):
    """In words: docs/explanation/privacy-evidence.md. None ends without a model, and no words follow the loss."""
    run = Run(DeKRRSettings(**OPEN | WITH_LOCAL | {"scale": "quantiles", "lone_neighbor": "refuse"}))
    run.second = SecondTraining(keep_intervals, fits_shared=False)
    kinds_of(run, words, np.linspace(1.0, 84.0, 42))
    found = {}
    for phase, kinds in run.phases.items():
        found.setdefault("again" if phase.startswith("again") else phase, set()).update(kinds)
    assert found.keys() == WHAT_IS_LEFT.keys()
    assert not {phase: kinds for phase, kinds in found.items() if not kinds <= WHAT_IS_LEFT[phase]}


def test_a_loss_while_sites_look_leaves_each_what_it_adds_at_home(words):
    run = Run(DeKRRSettings(**OPEN | WITH_LOCAL | {"scale": "quantiles"}, lone_neighbor="refuse"), looks=True)
    kinds = kinds_of(run, words, np.linspace(1.0, 17.0, 12))
    assert "at home" in run.phases["looking at rows"]
    assert {kind for kind, count in kinds.items() if count} == {"anew", "at home"}


@pytest.mark.parametrize("seed", range(6))
def test_any_site_or_link_may_be_lost_in_any_graph(seed, words):
    """A link is enough, and a neighbour's word for it: both sites are there, and their words may be anybody's."""
    rng = np.random.default_rng(seed)
    n_sites = int(rng.integers(3, 7))
    edges = [pair for pair in nx.complete_graph(n_sites).edges if rng.uniform() < 0.4]
    graph = nx.compose(nx.cycle_graph(n_sites), nx.Graph(edges))
    run = Run(DeKRRSettings(**OPEN | WITH_LOCAL, lone_neighbor="refuse"), graph=graph)
    lost = tuple(str(name) for name in rng.choice(list(run.graph.edges)))
    kinds = kinds_of(run, words, rng.uniform(1.0, 50.0, size=4), lost if seed % 2 else str(rng.choice(run.names[1:])))
    assert not kinds["ended"]


def test_with_a_warning_sites_go_on_and_the_sums_of_the_lost_one_can_be_had(words):
    run = Run(DeKRRSettings(**OPEN | {"shared": 6, "local": None}, lone_neighbor="warn"))
    found = 0
    for at in range(6, 13):
        words.clear()
        assert all(ending.error is None for ending in run.lose(at).values())
        found += single_sums(words)
    assert found


def test_a_restarted_site_knows_that_it_has_sent_masked_words(tmp_path):
    first = KeptOnDisk(tmp_path / "run.summed")
    first.note_words()
    first.note_words()
    again = KeptOnDisk(tmp_path / "run.summed")
    assert not again.has_sent
    again.epoch = "s2"
    assert again.has_sent
    again.forget()
    fresh = KeptOnDisk(tmp_path / "run.summed")
    fresh.epoch = "s2"
    assert not fresh.has_sent


def test_one_site_that_refuses_is_enough(words):
    """What a site does about losses is its own setting: its sums are in the words of all."""
    run = Run(DeKRRSettings(**OPEN | {"shared": 6, "local": None}, lone_neighbor="warn"))
    make = run.make

    def mixed(name, *more):
        run.settings = DeKRRSettings(
            **OPEN | {"shared": 6, "local": None}, lone_neighbor="refuse" if name == "s3" else "warn"
        )
        return make(name, *more)

    run.make = mixed
    endings = run.lose(8.0)
    assert {type(ending.error) for ending in endings.values()} == {LossError}
    assert not single_sums(words)


def network_of(n_sites, more, settings=""):
    """Return a network file of sites along a path or a ring."""
    sites = "".join(
        f'[[site]]\nname = "s{i}"\nendpoint = "127.0.0.1:{7000 + i}"\ndata = "{i}.csv"\n' for i in range(n_sites)
    )
    return f'run = "r"\n{more}\n[data]\ntarget = "y"\ncolumns = ["x"]\n[settings]\n{settings}\n{sites}'


@pytest.mark.parametrize(
    ("n_sites", "more", "settings", "reason"),
    [
        (2, 'method = "dekrr"', "", "of two sites each gets the sums of the other"),
        (2, 'method = "allreduce"', "sigma = 1.0", "of two sites each gets the sums of the other"),
        (2, 'method = "dekrr"', "masks = false", ""),
        (2, 'method = "dekrr"', 'lone_neighbor = "warn"', ""),
        (2, 'method = "dkla"', "sigma = 1.0", ""),
        (3, 'method = "dekrr"\nedges = [["s0", "s1"], ["s1", "s2"]]', "", "s1 is the only neighbour of s0"),
        (3, 'method = "allreduce"\nedges = [["s0", "s1"], ["s1", "s2"]]', "sigma = 1.0", ""),
        (3, 'method = "dekrr"', "", ""),
    ],
)
def test_a_network_whose_masks_hide_nothing_says_so_or_is_refused(tmp_path, n_sites, more, settings, reason):
    path = tmp_path / "network.toml"
    path.write_text(network_of(n_sites, more, settings))
    if not reason:
        assert len(read_network(path).site) == n_sites
        return
    with pytest.raises(SettingsError, match=reason) as caught:
        read_network(path)
    assert 'lone_neighbor = "warn"' in str(caught.value), "the remedy is missing"


@pytest.mark.parametrize(
    ("sites", "settings", "policy", "n_broken"),
    [
        ('["a", "b"]', 'lone_neighbor = "warn"', Policy(), 1),
        ('["a", "b"]', 'lone_neighbor = "warn"', Policy(lone_neighbor="warn"), 0),
        ('["a", "b", "c"]', 'lone_neighbor = "warn"', Policy(), 1),
        ('["a", "b", "c"]', "", Policy(), 0),
    ],
)
def test_no_study_takes_from_a_site_what_masks_hide(sites, settings, policy, n_broken):
    study = parse_study(
        f'name = "s"\nsites = {sites}\nsource = "rows"\nexpires = 2099-01-01\n[data]\ntarget = "y"\ncolumns = ["u"]\n'
        f"[settings]\nn_features = 10\n{settings}\n"
    )
    broken = refusals(policy, study, "a", ["rows"])
    assert len(broken) == n_broken
    assert all(text.startswith("lone_neighbor: ") for text in broken)


def test_nodes_end_their_rounds_and_leave_no_note_of_masked_words(tmp_path):
    mesh = Mesh(tmp_path, 3, settings={"lone_neighbor": "refuse", "tol": 0.0, "max_rounds": 50})
    nodes, errors = mesh.run_in_threads()
    assert not any(errors.values()), errors
    for name in mesh.names:
        (finished,) = (event for event in mesh.events(name) if event["event"] == "finished")
        assert finished["rounds"] == 10  # as many as features
        assert finished["rounds ended by"].startswith("masks")
        assert nodes[name]._kept.summed_in == ""
        assert not list(mesh.home(name).glob("*.summed"))
