"""
Predict PM2.5 at twelve stations
================================

Twelve stations of a city keep a raw table each: wind directions as words, time stamps, gaps. The data of Beijing's
twelve stations need a download, so the tables here are made up in the same shape. ``fit`` takes them as they are.
"""

# %%
# The weather drives the concentration, the hour and the season shift it, and each station has its own level.
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from dekrr import DeKRRRegressor, LocalRegressor

rng = np.random.default_rng(0)


def weather(n_rows):
    table = pd.DataFrame({"station": rng.choice([f"station {k:02}" for k in range(12)], n_rows)})
    table["when"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 8760, n_rows), unit="h")
    hour, day = table["when"].dt.hour, table["when"].dt.day_of_year
    table["temperature"] = 12 - 14 * np.cos(day / 365 * 2 * np.pi) + rng.normal(0, 4, n_rows)
    table["wind"] = rng.choice(["N", "NE", "E", "SE", "S", "W", "NW"], n_rows)
    table["speed"] = rng.gamma(2, 1.2, n_rows)
    table["rain"] = rng.random(n_rows) < 0.1
    place = table["station"].str[-2:].astype(int)
    clean = table["wind"].isin(["N", "NW"])
    table["pm25"] = (
        (90 - 40 * clean) * np.exp(-table["speed"] / 4) * (1.2 + 0.4 * np.cos((hour - 8 - place / 3) / 24 * 2 * np.pi))
        + 15 * np.cos(day / 365 * 2 * np.pi)
        - 10 * table["rain"]
        + 3 * place
        + rng.normal(0, 4, n_rows)
    )
    table.loc[rng.random(n_rows) < 0.03, "temperature"] = np.nan
    table.loc[rng.random(n_rows) < 0.03, "wind"] = None
    return table


table, new = weather(3600), weather(3600)
table.head()

# %%
# One call fits each method. The response and the sites are columns of the table.
together = DeKRRRegressor(random_state=0).fit(table, "pm25", sites="station")
alone = LocalRegressor(n_features=60, sigma=1.0, alpha=1e-4, random_state=0).fit(table, "pm25", sites="station")


def error_at(regressor, station):
    rows = new[new["station"] == station]
    return regressor.rse(rows, "pm25", sites="station")


stations = sorted(new["station"].unique())
fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
axes[0].bar(np.arange(12) - 0.2, [error_at(alone, s) for s in stations], width=0.4, label="alone")
axes[0].bar(np.arange(12) + 0.2, [error_at(together, s) for s in stations], width=0.4, label="together")
axes[0].set(xlabel="station", ylabel="RSE on new rows")
axes[0].legend()
rows = new[new["station"] == "station 04"]
axes[1].plot(rows["pm25"], together.predict(rows, sites="station"), ".", markersize=4)
axes[1].axline((50, 50), slope=1, color="0.5", linewidth=0.8)
axes[1].set(xlabel="measured at station 04", ylabel="predicted")
plt.show()

# %%
# The scale of each column shows how much it matters. All stations have agreed on these scales.
dict(zip(together.feature_names_in_, np.round(together.column_scales_, 2).tolist(), strict=True))
