"""
What a guarantee costs
======================

Differential privacy adds noise to the sums. A smaller epsilon promises more, and costs more accuracy. With more
rows the cost is smaller. With too few of them a model is worse than always predicting the mean (an RSE of 1).
"""

# %%
# The noise depends on how far one row can move a sum. So every column and the response need bounds, which everybody
# learns. They must be public knowledge: what is known without a look at anybody's rows, such as the range of an
# instrument, a scale of marks, or a legal limit. Bounds that are computed from rows tell about these rows, and void
# the guarantee. Here the description of ``make_sites`` gives them: places lie along a coast from 0 to 1, and somewhat
# beyond; the other columns lie between 0 and 1; the response is a sum of waves of heights 1, 1 and 0.3, and of noise.
# Values outside are clipped.
import warnings

import matplotlib.pyplot as plt
import numpy as np

from dekrr import DeKRRRegressor, DifferentialPrivacy
from dekrr.data import make_sites
from dekrr.errors import NoiseWarning
from dekrr.settings import ALONE  # the agreed part alone, as in the paper

lower, upper = (-0.5, 0.0, 0.0, -3.0), (1.5, 1.0, 1.0, 3.0)  # of three columns and, last, of the response

# %%
# Every fit here has rows of its own. Several fits to the same rows would spend the sum of their epsilons. A fit whose
# model would drown in noise warns beforehand, and says how many rows it takes. Here we want to see such fits, too.
warnings.simplefilter("ignore", NoiseWarning)
settings = {
    **ALONE,
    "n_features": 20,
    "features": "plain",
    "sigma": 0.3,
    "alpha": 1e-3,
    "consensus": 0.5,
    "bounds": (lower, upper),
    "random_state": 0,
}
epsilons = (1.0, 3.0, 10.0)
X_new, y_new, new_stations = make_sites(n_sites=4, rows_per_site=300, random_state=100)
fig, ax = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for rows_per_site in (500, 5000):
    errors, exact = [], []
    for seed, epsilon in enumerate(epsilons):
        X, y, stations = make_sites(n_sites=4, rows_per_site=rows_per_site, random_state=seed)
        for privacy, found in ((DifferentialPrivacy(epsilon=epsilon), errors), (None, exact)):
            regressor = DeKRRRegressor(privacy=privacy, **settings).fit(X, y, sites=stations)
            found.append(regressor.rse(X_new, y_new, sites=new_stations))
    (line,) = ax.plot(epsilons, errors, "o-", label=f"{rows_per_site} rows a site")
    ax.axhline(np.mean(exact), color=line.get_color(), linestyle=":")
ax.set(xscale="log", xlabel="epsilon", ylabel="own RSE on new rows\n(dotted: exact sums)", ylim=(0, 1.6))
ax.legend()
plt.show()
