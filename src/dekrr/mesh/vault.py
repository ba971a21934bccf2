"""The release of a private run in a file, so that a site that starts again sends the same noisy sums again."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..disk import replacing
from ..errors import DataError, SettingsError
from ..privacy.admission import Vault
from ..statistics import OwnSums


class FileVault(Vault):
    """Keeps one release in a file.

    `path`: a file of this run and site. It is written, to disk, before the release is used; where it exists already its
    release is used again. It holds nothing that was not made to be sent, and a digest under the secret. Where sites
    share the noise, it was made to be sent under masks, with the site's share of the noise alone. `secret`: a key of
    the site's own. Without it, whoever reads the file and knows all rows but one could find that one by trying.
    """

    def __init__(self, path: str | os.PathLike[str], secret: bytes) -> None:
        if not secret:
            raise SettingsError(
                "a release that is kept in a file needs the site's secret, so that nobody can use the file to test "
                "guesses about rows"
            )
        super().__init__(secret)
        self._path = Path(path)

    def once(self, key: bytes, draw: Callable[[], OwnSums]) -> OwnSums:
        """Return the release for `key`: the one that is kept, or what `draw` gives now."""
        if self._kept is None and self._path.exists():
            self._kept = _read(self._path)
        return super().once(key, draw)

    def _keep(self, key: str, sums: OwnSums) -> None:
        _write(self._path, key, sums)
        super()._keep(key, sums)


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
