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
        int, Setting("Sites to deal rows out to, where rows come without labels of sites.", _COUNT, agreed=False)
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
            "Of all random numbers of a fit.",
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
            "Fit under a deployment's guards and its defaults, where a setting has the estimators', and tell which "
            "sites a deployment would refuse, and why.",
            FLAG,
            agreed=False,
        ),
    ] = False
    verbose: Annotated[
        int,
        Setting(
            'Above 0, tell where a fit is: on a terminal, or else in the log "dekrr" of the module logging.',
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
            "sigma, alpha or consensus is left to be found and neither privacy nor rows_per_feature is set; the shared "
            "part is then not fitted again, which costs less and is less exact.",
            Rule('True, False or "auto"', lambda value: isinstance(value, bool) or value == "auto"),
            agreed=False,
        ),
    ] = "auto"
    network: Annotated[
        Any,
        Setting(
            "Makes the network that drives the sites' procedures from the graph of their names; see "
            "dekrr.networks.base. None is this process.",
            rules.CALLABLE.or_none(),
            agreed=False,
        ),
    ] = None
