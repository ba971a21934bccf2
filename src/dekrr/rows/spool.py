"""A temporary file with the rows of several sites; the rows of each site can be read separately."""

import math
import tempfile
import threading
import weakref
from array import array
from collections import defaultdict
from collections.abc import Hashable, Iterator

import numpy as np

from ..errors import DataError
from ..types import Block

_IN_MEMORY = 1 << 26  # bytes; larger spools go to a file


class Spool:
    """Blocks of rows by site, in memory if they are few and on disk otherwise.

    The file has no name, and is erased together with the object. Several threads may read at the same time.

    Examples
    --------
    >>> spool = Spool()
    >>> for start in (0, 2):
    ...     spool.write("north", Block(np.zeros((2, 1)), np.arange(start, start + 2.0)))
    >>> [block.y.tolist() for block in spool.read("north")], "south" in spool
    ([[0.0, 1.0], [2.0, 3.0]], False)
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._turn = threading.Lock()
        self._end = 0
        self._shapes: list[tuple[int, ...]] = []  # shapes of one row of X, of y and, if there is one, of weight
        self._places: dict[Hashable, array[int]] = defaultdict(lambda: array("q"))  # offset and n_rows of each block

    def __contains__(self, site: Hashable) -> bool:
        return site in self._places

    def write(self, site: Hashable, block: Block) -> None:
        """Add some rows of a site."""
        parts = [np.ascontiguousarray(part, dtype=np.float64) for part in block if part is not None]
        self._shapes = [part.shape[1:] for part in parts]
        self._places[site].extend((self._end, block.n_rows))
        try:
            for part in parts:
                self._file.write(part.data)
        except OSError as error:
            raise DataError(
                f"the rows of large sites do not fit into the folder for temporary files, {tempfile.gettempdir()}: "
                f"{error}; name another one in the environment variable TMPDIR, or give each site a file"
            ) from None
        self._end += sum(part.nbytes for part in parts)

    def read(self, site: Hashable) -> Iterator[Block]:
        """Pass over the rows of a site, in the blocks in which they were written."""
        widths = [math.prod(shape) for shape in self._shapes]
        places = self._places[site]
        for start, n_rows in zip(places[::2], places[1::2], strict=True):
            with self._turn:
                self._file.seek(start)
                data = self._file.read(8 * n_rows * sum(widths))
            parts = np.split(np.frombuffer(data), n_rows * np.cumsum(widths)[:-1])
            yield Block(*(part.reshape(n_rows, *shape) for part, shape in zip(parts, self._shapes, strict=True)))
