"""What a site has released under differential privacy in a run, so that it is released once.

Noise drawn twice for the same rows is two releases, and averages out. A site that resumes from a checkpoint, or
goes through the procedure again because a neighbour is gone, must therefore send what it sent before.
"""

import hmac
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..disk import replacing
from ..errors import DataError, SettingsError
from ..statistics import OwnSums


class Vault:
    """Keeps one release, in memory or in a file.

    Parameters
    ----------
    path : path-like, optional
        A file of this run and site. It is written, to disk, before the release is used; where it exists already
        its release is used again. It holds nothing that was not made to be sent, and a digest under the secret. Where
        sites share the noise, it was made to be sent under masks, with the site's share of the noise alone.
    secret : bytes, optional
        A key of the site's own. Without it, whoever reads the file and knows all rows but one could find that one by
        trying.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, secret: bytes = b"") -> None:
        if path is not None and not secret:
            raise SettingsError(
                "a release that is kept in a file needs the site's secret, so that nobody can use the file to test "
                "guesses about rows"
            )
        self._secret = secret
        self._path = Path(path) if path is not None else None
        self._kept: tuple[str, OwnSums] | None = None

    def once(self, key: bytes, draw: Callable[[], OwnSums]) -> OwnSums:
        """Return the release for `key`: the one that is kept, or what `draw` gives now.

        Raises
        ------
        SettingsError
            When something else was released in this run, so that the budget is spent.
        """
        key = hmac.digest(self._secret, key, "sha256")
        if self._kept is None and self._path is not None and self._path.exists():
            self._kept = _read(self._path)
        if self._kept is None:
            kept = (key.hex(), draw())
            if self._path is not None:
                _write(self._path, *kept)
            self._kept = kept
        if self._kept[0] != key.hex():
            raise SettingsError(
                "the privacy budget of this run is spent: sums of other rows, features or another budget were released "
                "in it already; start a new run"
            )
        return self._kept[1]


def _write(path: Path, key: str, sums: OwnSums) -> None:
    tensors = {"gram": np.ascontiguousarray(sums.gram), "moment": np.ascontiguousarray(sums.moment)}
    with replacing(path, durable=True) as temporary:
        try:
            save_file(tensors, temporary, metadata={"key": key})
        except SafetensorError as error:
            raise DataError(f"{path} cannot be written, and nothing is released without it: {error}") from None


def _read(path: Path) -> tuple[str, OwnSums]:
    try:
        with safe_open(path, framework="numpy") as file:
            return file.metadata()["key"], OwnSums(file.get_tensor("gram"), file.get_tensor("moment"), 0.0)
    except (SafetensorError, OSError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is not a release that can be read ({error}); without it this run cannot resume"
        ) from None
