"""What a study says: which model to train, from which columns, by which sites, when, and until when."""

import datetime
import hashlib
from typing import Any, Literal

import msgspec

from ..checks import check_site, read_as
from ..config import DataTable, Seconds, SiteFile


class StudyFile(msgspec.Struct, frozen=True, kw_only=True):
    """All of study.toml.

    `patience`, `start_patience`: as in network.toml.
    """

    name: str
    sites: tuple[str, ...]  # all sites that take part; all must approve
    source: str  # the name of the data source at each site
    data: DataTable  # the target and the columns
    expires: datetime.date  # the last day on which a run may start
    about: str = ""  # what the study is for, for the person who approves it
    method: Literal["dekrr", "dkla", "allreduce"] = "dekrr"
    settings: dict[str, Any] = {}
    every_hours: float = 0.0  # train again after so many hours; 0 for a single run
    new_rows: int = 0  # train again when a site has so many new rows; 0 for never
    # Later runs keep the agreed part's features of the first, and start from the last model. The settings must be
    # numbers, and `column_scales` "none".
    warm: bool = False
    patience: Seconds = 60.0
    start_patience: Seconds = 600.0

    def site_file(self, run: str, site: str, neighbors: dict[str, str], file: str, scheduler: str = "") -> SiteFile:
        """Return what a site needs for one run; where its rows are is the site's word, not the study's."""
        return SiteFile(
            run=run,
            site=site,
            method=self.method,
            listen="127.0.0.1:1",
            sites=self.sites,
            neighbors={p: endpoint for p, endpoint in neighbors.items() if p in self.sites},
            data=msgspec.structs.replace(self.data, file=file, scheduler=scheduler),
            settings=self.settings,
            patience=self.patience,
            start_patience=self.start_patience,
        )


def digest_of(text: str) -> str:
    """Return the digest by which a study is approved: the SHA-256 of its text.

    Examples
    --------
    >>> digest_of("name = 'air'")[:8]
    'c1445e91'
    """
    return hashlib.sha256(text.encode()).hexdigest()


def parse_study(text: str, where: str = "the study") -> StudyFile:
    """Return a study from its text; all mistakes are reported together."""
    return read_as(StudyFile, text, _check, where)


def _check(study: StudyFile, mistakes: list[str]) -> None:
    if len(study.sites) < 2:
        mistakes.append("sites: a study has at least two sites")
    if study.every_hours < 0 or study.new_rows < 0:
        mistakes.append("every_hours and new_rows cannot be negative")
    config = study.site_file(study.name, (*study.sites, "x")[0], {}, "rows")
    check_site(config, mistakes)
    if study.warm and not mistakes:
        mistakes += [f"warm: {reason}; or leave warm out" for reason in config.why_not_warm()]
