"""The model on a site's disk: a full disk or a folder that cannot be written to delays it, and loses nothing."""

import time
from pathlib import Path

from ..errors import ModelFileError
from ..model import SiteModel
from .events import ModelNotWritten
from .session.events import Listener


def save_model(model: SiteModel, path: Path, patience: float, tell: Listener) -> None:
    """Write a model; on a write error tell it, and try again every second until the patience, in seconds, is over."""
    until = time.monotonic() + patience
    while True:
        try:
            model.save(path)
            return
        except (OSError, ModelFileError) as error:
            tell(ModelNotWritten(path=str(path), reason=str(error)))
            if time.monotonic() > until:
                raise
            time.sleep(min(1.0, patience))
