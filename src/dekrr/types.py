"""Names of types that every module shares."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
