"""Tables as people have them: words, categories, dates, booleans and missing values, and how they become numbers.

- `tables`: the columns of a pandas or Polars frame, of a pyarrow table, of a mapping of names to arrays.
- `kinds_of_columns`: one column, as one of five kinds.
- `dates`: dates and times as numbers.
- `facts`: what a site tells the others about its columns.
- `columns`: what all sites agreed on, and the encoding by it. It is part of the model file.
"""

from .columns import Column, Columns
from .facts import Facts
from .tables import RawTable, column_names, is_frame, is_plain, read_raw

__all__ = ["Column", "Columns", "Facts", "RawTable", "column_names", "is_frame", "is_plain", "read_raw"]
