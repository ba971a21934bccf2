"""What a site of a mesh does in a run: the procedure that its file asks for, the same that the estimators run."""

from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np

from ..errors import DataError, WrongRowsWarning
from ..messages import Offer
from ..model import SiteModel
from ..protocols import dekrr, training
from ..protocols.calibration import keep_classes, keep_intervals
from ..protocols.looking import FEWEST_SITES, KINDS, Looked
from ..protocols.roll_call import are_named
from ..protocols.run import Outcome
from ..protocols.site import Procedure, Site
from ..protocols.training import has_parts
from ..settings import DeKRRSettings
from ..tables.columns import Columns
from .config import METHODS, SiteFile


class Warm(NamedTuple):
    """The start of a run from an earlier one: the site's model of then, or None where it has none."""

    model: SiteModel | None

    def site(self, site: Site) -> Site:
        """Return the site with the features and the coefficients that it had."""
        if self.model is None:
            return replace(site, coefficients=np.empty(0))
        own = self.model.members[0]
        return replace(site, feature_map=own.feature_map, coefficients=own.coefficients)


def procedure_of(
    config: SiteFile,
    site: Site,
    offer: Offer | None = None,
    n_gone: int = 0,
    columns: Columns | None = None,
    warm: Warm | None = None,
) -> Procedure[Outcome]:
    """Return what a site does in an epoch of a run.

    After the loss of a site all others begin again, from their rows and the same seeds. A run of the agreed part alone,
    with given numbers, keeps the features that it has. Other runs find scales, features and numbers anew, because these
    depend on the rows of all sites that are left.

    `offer`: the features that the site once offered its neighbours. `n_gone`: how many sites were lost. `columns`: what
    raw columns have become. `warm`: the start from an earlier run, where `SiteFile.why_not_warm` has no reason against
    it.
    """
    chooser, settings, tuning = config.chooser(), config.method_settings(n_gone), config.tuning()
    if config.method != "dekrr":
        train, _ = METHODS[config.method]
        return (yield from train(site, chooser, settings))
    if columns is not None and isinstance(settings.column_scales, tuple | list):
        scales = columns.spread(settings.column_scales)
        settings = msgspec.structs.replace(settings, column_scales=tuple(scales.tolist()))
    site = replace(site, rows=site.rows.transformed(config.response(), f"site {site.name!r}"))
    second = _second(config, settings)
    is_plain = tuning is None and columns is None and second is None and not has_parts(settings)
    if looks(config, settings):
        prediction, has_codes = config.features().prediction, bool(config.data.classes)
        site, looked = yield from training.look_first(site, settings, prediction, has_codes=has_codes)
        _tell(config, site, looked, columns, stops=settings.exclude == "stop")
    if warm is not None and not config.why_not_warm():
        site = warm.site(site)
    if offer is not None and is_plain:
        site = dekrr.with_features(site, offer, chooser, settings)
    return (
        yield from training.train(
            site,
            chooser,
            settings,
            tuning,
            prediction=config.features().prediction,
            second=second,
            keep_sums=False,
        )
    )


def looks(config: SiteFile, settings: DeKRRSettings) -> bool:
    """Return whether the sites of a run look at each other's rows before any of them are in a model."""
    there = len(config.sites) >= FEWEST_SITES and are_named(len(config.sites))
    return there and settings.exclude is not None and settings.shared is not None


def _tell(config: SiteFile, site: Site, looked: Looked, columns: Columns | None, *, stops: bool) -> None:
    """Tell this site what looks wrong, here in full and of others by column and kind; refuse the run if it `stops`."""
    names = [*config.data.columns, *config.data.targets]
    if columns is not None:
        names = [*(one.name for one in columns.columns for _ in one.names_out), *config.data.targets]
    told = [f"{names[one.place]!r} {one.text}" for one in looked.findings]
    others = {
        name: f"{name}: {', '.join(f'{names[place]!r} {KINDS[kind]}' for place, kind in heard)}"
        for name, heard in looked.told.items()
        if name != site.name
    }
    if told:
        site.tell(f"the rows of {site.name} look wrong beside the others': {'; '.join(told)}", WrongRowsWarning)
    for text in others.values():
        site.tell(f"the rows of {text}; what they are is known there", WrongRowsWarning)
    if stops and looked.told:
        own = f"the rows of {site.name} look wrong: {'; '.join(told)} Put them right" if told else ""
        what = own or f"the rows of {'; of '.join(others.values())}"
        error = DataError(f'{what}; or give exclude = "warn", which goes on all the same')
        raise error.about(names[looked.findings[0].place] if told else "", "wrong-rows")


def refuse_beforehand(config: SiteFile, site: Site) -> None:
    """Refuse a run that the site would refuse later on, before it speaks to anybody."""
    settings = config.method_settings()
    if config.method == "dekrr" and _second(config, settings) is not None:
        training.check_second(site, config.chooser(), settings)


def _second(config: SiteFile, settings: DeKRRSettings) -> training.SecondTraining | None:
    """Return the second training that classes or intervals take."""
    if config.data.classes:
        return training.SecondTraining(keep_classes, fits_shared=False)
    return training.SecondTraining(keep_intervals) if settings.intervals else None
