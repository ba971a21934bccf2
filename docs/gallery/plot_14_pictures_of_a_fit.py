"""
Pictures of a fit
=================

`dekrr.plot` has five functions. Each draws a picture of a fitted estimator into matplotlib axes, and returns the axes.
"""

# %%
import matplotlib.pyplot as plt
import pandas as pd

from dekrr import DeKRRRegressor, plot
from dekrr.data import make_sites


def table_of(seed):
    X, y, stations = make_sites(n_sites=6, rows_per_site=150, random_state=seed)
    return pd.DataFrame(X, columns=["temperature", "wind", "pressure"]).assign(station=stations, pm25=y)


table, new = table_of(0), table_of(1)
regressor = DeKRRRegressor(n_features=30, random_state=0).fit(table, "pm25", sites="station")

# %%
# The graph of sites. The colour of a site is the error of its own model on its own rows.
plot.sites(regressor, new, "pm25", sites="station")
plt.show()

# %%
# Predictions by each row's own site, against the truth. A perfect model has all points on the line.
plot.predicted(regressor, new, "pm25", sites="station")
plt.show()

# %%
# The objective in every round, above its last value.
plot.convergence(regressor)
plt.show()

# %%
# The scales of the columns, which all sites learn together: how fast the response changes along each column.
plot.scales(regressor)
plt.show()

# %%
# The bytes from each site to each other site. Sites that are no neighbours send each other nothing.
plot.traffic(regressor)
plt.show()
