"""The data sets that dekrr knows by name, as catalogue.toml has them, and the paper's settings for its own."""

from collections.abc import Mapping
from importlib.resources import files

import msgspec


class DataSource(msgspec.Struct, frozen=True):
    title: str  # the name in the paper, or at the source
    n_rows: int  # n_rows, n_columns: the size of a complete file
    n_columns: int
    url: str = ""  # the address of the public archive
    archive: str = ""  # the archive's file name after the download
    members: tuple[str, ...] = ()  # patterns of the files with the rows, in the archive or unpacked beside it
    # the mean of y and the mean of |X|, for the check of a downloaded file, with a tolerance of one in a thousand.
    # Without them the number of rows is the publisher's figure, and its tolerance is one row in a hundred.
    means: tuple[float, float] | None = None
    sha256: str | None = None  # the checksum of the archive, if its publisher never changes it
    sites: tuple[str, ...] = ()  # the names for the numbers in the column `node`, if the data has its own sites
    note: str = ""  # what a user should know before use


class PaperSettings(msgspec.Struct, frozen=True):
    sigma: float  # sigma, alpha: bandwidth and regularisation, which the authors chose by the test error
    alpha: float
    n_features: tuple[int, ...]  # the values of D in the figures
    table_features: int  # the value of D in the main table
    mix: float = 0.2  # the share of every site's rows that is drawn at random, in the setting that sorts rows by |y|
    published: Mapping[str, float] = {}  # the RSE in the main table


class _Catalogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sources: dict[str, DataSource]
    paper: dict[str, PaperSettings]


_read = msgspec.toml.decode(files(__package__).joinpath("catalogue.toml").read_bytes(), type=_Catalogue)
CATALOGUE: Mapping[str, DataSource] = _read.sources
PAPER: Mapping[str, PaperSettings] = _read.paper
