"""What the estimators take besides: how rows in one process become sites on a graph, and what is kept of them."""

from typing import Annotated, Any

import msgspec

from .. import rules
from ..rules import FLAG, Rule, one_of, whole_number
from .schema import Setting

_COUNT = whole_number(1)


class EstimatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the estimators take besides."""

    topology: Annotated[
        Any,
        Setting(
            "The graph of sites.",
            one_of(*rules.TOPOLOGIES),
            objects=rules.EDGES,
            agreed=False,
        ),
    ] = "ring"
    n_neighbors: Annotated[
        int, Setting("Neighbours of a site, where the topology leaves it open.", _COUNT, agreed=False)
    ] = 4
    n_sites: Annotated[
        int,
        Setting("Number of sites among which rows are divided, where rows have no site labels.", _COUNT, agreed=False),
    ] = 10
    unknown_sites: Annotated[
        str,
        Setting(
            "What predicts a row of a site that was not in fit: nothing, or the mean of all sites' models.",
            one_of("error", "mean"),
            agreed=False,
        ),
    ] = "error"
    random_state: Annotated[
        Any,
        Setting(
            "Seed of all random numbers of a fit.",
            rules.RANDOM_STATE.or_none(),
            agreed=False,
        ),
    ] = None
    store_rows: Annotated[
        bool,
        Setting(
            "Keep the rows, or where they are read from, in the fitted estimator and in its pickles. A site can join "
            "later, or an edge be added, only where they are kept.",
            FLAG,
            agreed=False,
        ),
    ] = False
    store_sums: Annotated[
        bool,
        Setting(
            "Keep the sums over rows, so that `partial_fit` and `remove_site` can go on from the fit. Without them a "
            "fit of very many sites takes a third less memory.",
            FLAG,
            agreed=False,
        ),
    ] = True
    deployment: Annotated[
        bool,
        Setting(
            "Fit with the guards of a deployment, and with its defaults for settings that are left at the estimators' "
            "defaults. Sites that a deployment would refuse are named, with the reason.",
            FLAG,
            agreed=False,
        ),
    ] = False
    verbose: Annotated[
        int,
        Setting(
            'Above 0, show the progress of a fit: on a terminal, or else in the logger "dekrr" of the module logging.',
            whole_number(0),
            agreed=False,
        ),
    ] = 0
    callbacks: Annotated[
        Any,
        Setting(
            "Functions that are called with a dekrr.estimators.progress.FitEvent whenever sites exchange messages.",
            rules.CALLABLES.or_none(),
            agreed=False,
        ),
    ] = None
    intervals: Annotated[
        Any,
        Setting(
            'Train a second time without a fifth of the rows, for predict_interval. With "auto" this is done where '
            "sigma, alpha or consensus is left open and neither privacy nor rows_per_feature is set; the shared part "
            "is then not fitted again, which costs less and is less exact.",
            Rule('True, False or "auto"', lambda value: isinstance(value, bool) or value == "auto"),
            agreed=False,
        ),
    ] = "auto"
    network: Annotated[
        Any,
        Setting(
            "A function that makes the network which drives the sites' procedures, from the graph of their names; see "
            "dekrr.networks.base. None runs all sites in this process.",
            rules.CALLABLE.or_none(),
            agreed=False,
        ),
    ] = None
