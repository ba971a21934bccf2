"""Ten stations along a coast, none of which may send its rows away: one model per station, in ten lines."""

from dekrr import DeKRRRegressor, LocalRegressor
from dekrr.data import make_sites


def main(rows_per_site: int = 60) -> dict[str, float]:
    X, y, stations = make_sites(rows_per_site=rows_per_site, random_state=0)
    X_new, y_new, new_stations = make_sites(rows_per_site=rows_per_site, random_state=1)
    settings = {"n_features": 30, "sigma": 0.3, "alpha": 1e-4, "random_state": 0}

    together = DeKRRRegressor(**settings).fit(X, y, sites=stations)
    alone = LocalRegressor(**settings).fit(X, y, sites=stations)

    errors = {}
    for name, regressor in (("together", together), ("alone", alone)):
        for metric in ("own", "union"):
            errors[f"{name}, {metric}"] = regressor.rse(X_new, y_new, sites=new_stations, metric=metric)
            print(f"{name:9} {metric:6} RSE {errors[f'{name}, {metric}']:.3f}")
    print(f"{together.n_rounds_} rounds, {together.traffic_.total_bytes / 1e3:.0f} kB over all edges")
    one = together.models_["station 03"]
    print("station 03 predicts", one.predict(X_new[:3]).round(2))
    return errors


if __name__ == "__main__":
    main()
