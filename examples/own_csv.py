"""Your own CSV with a site column: fit, look at each site, save the models, and load one elsewhere.

    python examples/own_csv.py [FILE.csv TARGET SITE]

Without arguments it writes a small file first, so that there is something to read.
"""

import sys
import tempfile
from pathlib import Path

import pandas as pd

import dekrr
from dekrr.data import make_sites, read_table


def make_file(path: Path, rows_per_site: int) -> None:
    X, y, stations = make_sites(n_sites=5, rows_per_site=rows_per_site, noise=0.1, random_state=0)
    table = pd.DataFrame(X, columns=["place", "salinity", "depth"])
    table.assign(station=stations, temperature=y).to_csv(path, index=False)


def main(file: Path, target: str, site: str) -> dict[str, float]:
    table = read_table(file)
    held_out = table.groupby(site).sample(frac=0.3, random_state=0).index
    train, test = table.drop(index=held_out), table.loc[held_out]
    columns = [name for name in table.columns if name not in (target, site)]

    regressor = dekrr.DeKRRRegressor(n_features=30, sigma=0.3, alpha=1e-4, random_state=0)
    regressor.fit(train[columns], train[target], sites=train[site])
    errors = {}
    for label, rows in test.groupby(site):
        errors[str(label)] = dekrr.rse(rows[target], regressor.predict(rows[columns], sites=rows[site]))
        print(f"{label}: RSE {errors[str(label)]:.3f} on {len(rows)} rows held out")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "first.safetensors"
        regressor.models_[regressor.sites_[0]].save(path)
        model = dekrr.load(path)
        print(f"{model.header.site}'s model, read back, predicts", model.predict(test[columns][:2]).round(2))
    return errors


def with_a_small_file(rows_per_site: int = 200) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stations.csv"
        make_file(path, rows_per_site)
        return main(path, "temperature", "station")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        main(Path(sys.argv[1]), *sys.argv[2:])
    else:
        with_a_small_file()
