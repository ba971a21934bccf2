import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_directory():
    """The folder of the real data sets; tests that need it are skipped without one."""
    directory = os.environ.get("DEKRR_DATA")
    if not directory:
        pytest.skip("set DEKRR_DATA to the folder of the data sets")
    return Path(directory)
