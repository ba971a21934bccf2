"""Where rows come from: memory, files, datasets, lazy frames, and functions that return batches.

- `rows`: the interface of a site's rows, and rows in memory.
- `streamed`: rows that are read in batches.
- `survey`: the first pass over rows: their number, their bounds and a sample.
- `spool`: a temporary file with the rows of the sites of one table.
- `sources`: the kinds of objects that rows can be read from.
- `batches`: the conversion of a source's batches to arrays.
"""

from .rows import ArrayRows, ChainedRows, Rows
from .streamed import StreamedRows, split_by_site

__all__ = ["ArrayRows", "ChainedRows", "Rows", "StreamedRows", "split_by_site"]
