import numpy as np
import pytest

from dekrr.errors import SettingsError
from dekrr.solvers import Chebyshev, SiteSystem
from dekrr.statistics import BlockRow, OwnSums, Weights


def test_a_system_that_is_not_positive_definite_says_what_to_do():
    row = BlockRow((), np.diag([1.0, -1e-9]), np.zeros(2), 0.0)
    system = SiteSystem(row, OwnSums(np.eye(2), np.zeros(2), 0.0), {}, Weights(1, 1, 0.0, 0.0, {}), 0.0)
    with pytest.raises(SettingsError, match="raise alpha"):
        Chebyshev().start(system, np.zeros(2))
