"""Tasks. A task has everything that decides the outcome of one fit; by its key a second run skips finished fits."""

from typing import Any

import msgspec

PROTOCOLS = ("honest", "paper")
SPLITS = ("own", "authors")


class Task(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One fit of one method on one split.

    Parameters
    ----------
    experiment : str
        The command that needs the fit: table, response, norm, ...
    data : str
        A name of the data catalogue.
    partition : str
        The partition of rows over sites; see `dekrr.data.partition`.
    protocol : {"honest", "paper"}
        "paper" scales by training and test rows, takes the authors' bandwidth and regularisation (chosen by the test
        error) and folds of consecutive rows, and keeps one split for all repetitions. "honest" scales and tunes on
        training rows only, with shuffled folds, and draws a new split for every repetition.
    splits : {"own", "authors"}
        The origin of the split: drawn here, or from the authors' files.
    n_sites, n_neighbors : int
    mix : float
        The share of every site's rows that is drawn at random.
    n_rows : int
        The number of rows of the data set to use, drawn at random; 0 for all.
    method : str
        See `dekrr.experiments.methods`.
    solver : str
        The name of the solver; "" for the method's default.
    allocation : str
    n_features : int
        The mean number of features of a site.
    max_rounds : int
    repetition, seed : int
    """

    experiment: str
    data: str
    partition: str
    protocol: str
    splits: str
    n_sites: int
    n_neighbors: int
    mix: float
    n_rows: int
    n_features: int
    method: str
    solver: str
    allocation: str
    max_rounds: int
    repetition: int
    seed: int

    @property
    def key(self) -> tuple[Any, ...]:
        """All fields that decide the outcome; the experiment that needs the fit does not."""
        return msgspec.structs.astuple(self)[1:]

    @property
    def run_seed(self) -> int:
        """The seed of the features; it differs between repetitions."""
        return self.seed + self.repetition

    @property
    def split_seed(self) -> int:
        """The seed of the division into sites and halves."""
        return self.seed if self.protocol == "paper" else self.run_seed
