"""Fits that a test runs with several ranks: every rank writes what it has to a file of its own.

mpiexec -n 2 python tests/mpi_program.py FOLDER NAME ...
"""

import sys
import warnings
from pathlib import Path
from unittest import mock

import numpy as np

from dekrr import AllReduceRegressor, COKERegressor, DeKRRRegressor, DKLARegressor
from dekrr.data import make_sites

PLAIN = {"n_features": 12, "sigma": 0.3, "alpha": 1e-4, "random_state": 0}
FITS = {
    "dekrr": (DeKRRRegressor, {**PLAIN, "consensus": 1.0}),
    "greedy": (DeKRRRegressor, {**PLAIN, "features": "greedy", "consensus": 1.0, "prediction": "neighborhood"}),
    "tuned": (DeKRRRegressor, {**PLAIN, "features": "energy", "alpha": [1e-6, 1e-3], "consensus": [0.5, 4.0]}),
    "sqrt": (DeKRRRegressor, {**PLAIN, "consensus": 1.0, "allocation": "sqrt", "topology": "grid", "solver": "jacobi"}),
    "int8": (DeKRRRegressor, {**PLAIN, "consensus": 1.0, "wire_precision": "int8", "topology": "random_regular"}),
    "features": (DeKRRRegressor, {**PLAIN, "consensus": 1.0, "exchange": "features"}),
    "census": (DeKRRRegressor, {**PLAIN, "features": "plain", "consensus": 1.0, "n_features": 60}),
    "parts": (DeKRRRegressor, {"n_features": 12, "random_state": 0}),
    "dkla": (DKLARegressor, {**PLAIN, "max_rounds": 60}),
    "coke": (COKERegressor, {**PLAIN, "max_rounds": 60}),
    "allreduce": (AllReduceRegressor, {**PLAIN, "features": "energy"}),
}


def fitted(name, network):
    """Return a fitted regressor; the one of DeKRR has gone on with new rows."""
    kind, settings = FITS[name]
    X, y, sites = make_sites(n_sites=8, random_state=0)
    few = 3 if name == "census" else 256
    with warnings.catch_warnings(), mock.patch("dekrr.protocols.roll_call._MOST_NAMED", few):
        warnings.simplefilter("ignore")
        regressor = kind(**settings, network=network).fit(X, y, sites=sites)
        if name == "dekrr":
            regressor.partial_fit(X[::2] + 0.01, y[::2], sites=sites[::2])
    return regressor


def arrays_of(regressor):
    """Return all numbers of a fitted regressor that must not depend on where sites are."""
    arrays = {}
    for label, model in regressor.models_.items():
        for i, member in enumerate(model.members):
            arrays[f"{label} {i} coefficients"] = member.coefficients
            arrays[f"{label} {i} frequencies"] = member.feature_map.frequencies
    edges = sorted(regressor.traffic_.bytes.items(), key=repr)
    arrays["traffic"] = np.array([size for _, size in edges])
    arrays["rows"] = np.array(list(regressor.n_rows_.values()))
    arrays["rounds"] = np.array([regressor.n_rounds_])
    errors = (getattr(regressor, "validation_", None) or {}).get("RSE")
    if errors is not None:
        arrays["held-out rows"] = np.array([*errors.n_rows.values(), errors.n_union])
        by_site = [list(of_sites.values()) for of_sites in (errors.own, errors.union, errors.alone)]
        arrays["held-out errors"] = np.array(by_site)
        arrays["mean held-out errors"] = np.array([errors.mean_own, errors.mean_union, errors.within_own])
        arrays["excess"] = np.array(list(errors.excess.values()))
    return arrays


def main():
    from dekrr.networks.mpi import MPINetwork

    folder, *names = sys.argv[1:]
    network = MPINetwork(patience=120)
    for name in names:
        regressor = fitted(name, network)
        objective = np.asarray(regressor.history_["objective"])
        arrays = {**arrays_of(regressor), "objective": objective}
        np.savez(Path(folder) / f"{name}-{network.n_ranks}-{network.rank}.npz", **arrays)


if __name__ == "__main__":
    main()
