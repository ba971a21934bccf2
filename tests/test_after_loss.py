"""A site lost under masks, at any moment: what the others end with, and that nobody can have its sums."""

from dataclasses import replace
from functools import cache
from itertools import product

import networkx as nx
import numpy as np
import pytest

from dekrr.errors import LossError, SettingsError
from dekrr.lab.testing.faulty import Crash, Faults, FaultyNetwork
from dekrr.mesh.files import read_network
from dekrr.mesh.policy import Policy, refusals
from dekrr.mesh.studies.study import parse_study
from dekrr.networks.local import LocalNetwork
from dekrr.privacy.masks import Identity
from dekrr.protocols import training
from dekrr.protocols.after_loss import KeptOnDisk, guarded
from dekrr.protocols.masking import Masks
from dekrr.protocols.site import Kept, Site
from dekrr.selection import Energy, Plain
from dekrr.settings import DeKRRSettings
from dekrr.tables.rows import ArrayRows
from meshes import Mesh
from soak import Problem

OPEN = {"scale": "minmax", "min_rows": 1, "rows_per_feature": 0, "max_leverage": 1, "max_rounds": 12, "tol": 0.0}
ALONE = dict.fromkeys(("shared", "site_effect", "local", "column_scales"))
LOST = "s2"


class Run(Problem):
    """Five sites that all know each other, and how they train; all masked words that they make are noted."""

    def __init__(self, settings, selector=None):
        super().__init__(0)
        self.names = [f"s{i}" for i in range(5)]
        self.graph = nx.relabel_nodes(nx.complete_graph(5), dict(enumerate(self.names)))
        self.settings, self.selector, self.kept = settings, selector or Plain(4), {}
        rng = np.random.default_rng(1)
        self.rows = {name: (rng.uniform(size=(40, 2)), rng.uniform(-1, 1, size=40)) for name in self.names}

    def make(self, name, neighbors, offer, identity=None, kept=None):
        site = Site(name, tuple(neighbors), ArrayRows(*self.rows[name]), tell=lambda *text: None)
        site = replace(site, identity=identity or Identity(), kept=kept or Kept())
        return guarded(site, lambda: training.train(site, self.selector, self.settings), self.settings)

    def lose(self, at):
        """Lose a site at a moment; return how the others ended."""
        faults = Faults(delay=0.3, crashes=(Crash(LOST, at=float(at), back=None),))
        network = FaultyNetwork(self.graph, self.open_session, faults, 0)
        network.run()
        assert not network.hung
        return {name: ending for name, ending in network.endings.items() if name != LOST}

    def undisturbed(self):
        return LocalNetwork(self.graph).run({name: self.make(name, self.graph[name], None) for name in self.names})


@pytest.fixture
def words(monkeypatch):
    """What every site has made of masked words, whether it arrived or not: by whose sum, number and epoch, by site."""
    made = {}

    def note(kept, site, centre, number, vector):
        made.setdefault((centre, number, len(vector)), {})[kept.epoch, site] = vector

    hide, hide_over_tree = Masks.hide, Masks.hide_over_tree

    def noting(self, values, exponent):
        found = hide(self, values, exponent)
        for centre, vector in found.items():
            note(self._site.kept, self._site.name, centre, self._number, vector)
        return found

    def noting_tree(self, values, n_sites):
        found = hide_over_tree(self, values, n_sites)
        note(self._site.kept, self._site.name, "", self._number, found)
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


def kinds_of(run, made, expected, times):
    """Lose a site at every moment, and return how often the others went on without it, ended, or kept the model."""
    kinds = dict.fromkeys(("anew", "ended", "kept", "over"), 0)
    for at in times:
        made.clear()
        run.kept.clear()
        endings = run.lose(at)
        errors = [ending.error for ending in endings.values() if ending.error is not None]
        assert len(endings) == 4
        assert all(isinstance(error, LossError) for error in errors), errors
        assert len(errors) in (0, 4), "some have a model, others do not"
        assert not single_sums(made), at
        if errors:
            kinds["ended"] += 1
            assert LOST in str(errors[0])
            continue
        kind = "kept" if run.kept["s0"].has_sent else "over" if not endings["s0"].gone else "anew"
        kinds[kind] += 1
        for name, ending in endings.items():
            assert (LOST in ending.outcome.roster.rows) == (kind != "anew")
            if kind == "kept":
                check_kept(ending.outcome, expected[name])
    return kinds


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
    ("settings", "last"), [(ALONE, 16.0), ({"shared": 6, "local": None}, 46.0)], ids=["agreed part", "all parts"]
)
def test_a_loss_at_any_moment_leaves_one_set_of_sums(settings, last, words):
    run = Run(DeKRRSettings(**OPEN | settings, lone_neighbor="refuse"), Energy(4) if settings == ALONE else None)
    expected = run.undisturbed()
    kinds = kinds_of(run, words, expected, np.linspace(1.0, last, 18))  # the run takes about as long
    assert min(kinds.values()) >= 1, kinds


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
