"""Where rows come from: memory, files, datasets, lazy frames, and functions of batches.

`rows` has what a site's procedure asks of its rows, `streamed` the rows that are read in batches, `survey` what a first
pass finds out, `spool` the temporary file for the sites of one table, `sources` all that rows can be read from, and
`batches` the arrays in what a source gives.
"""

from .rows import ArrayRows, ChainedRows, Rows
from .streamed import StreamedRows, split_by_site

__all__ = ["ArrayRows", "ChainedRows", "Rows", "StreamedRows", "split_by_site"]
