"""Twelve real stations in Beijing predict PM2.5 together, without any of them sending its measurements.

    DEKRR_DATA=folder/of/data python examples/beijing_stations.py

It needs beijing12 in the data directory: `dekrr data fetch beijing12`.
"""

import numpy as np

from dekrr import DeKRRRegressor, LocalRegressor, rse
from dekrr.data import halves, load


def main(rows_per_station: int = 3000, n_features: int = 150) -> dict[str, float]:
    dataset = load("beijing12")
    rng = np.random.default_rng(0)
    chosen = np.concatenate(
        [
            rng.choice(np.flatnonzero(dataset.sites == station), rows_per_station, replace=False)
            for station in np.unique(dataset.sites)
        ]
    )
    X, y, stations = dataset.X[chosen], dataset.y[chosen], dataset.sites[chosen]
    train = halves(stations, random_state=0)
    settings = {"n_features": n_features, "sigma": 1.0, "alpha": 1e-6, "random_state": 0}
    together = DeKRRRegressor(**settings, prediction="neighborhood").fit(X[train], y[train], sites=stations[train])
    alone = LocalRegressor(**settings).fit(X[train], y[train], sites=stations[train])

    print("RSE on half of each station's rows   together   alone")
    for station in together.sites_:
        test = ~train & (stations == station)
        errors = [rse(y[test], r.predict(X[test], sites=stations[test])) for r in (together, alone)]
        print(f"{station:34}  {errors[0]:9.3f} {errors[1]:7.3f}")
    summary = {}
    for name, regressor in (("together", together), ("alone", alone)):
        for metric in ("own", "union"):
            summary[f"{name}, {metric}"] = regressor.rse(X[~train], y[~train], sites=stations[~train], metric=metric)
    print({key: round(value, 3) for key, value in summary.items()})
    return summary


if __name__ == "__main__":
    main()
