"""What a site does when another one is lost: masked sums over rows are formed over one set of sites, ever.

A sum over all sites less a sum over all but one is that one's own sum, which the masks were to hide. One or two
neighbours' word is enough to declare a loss, and words of a site that was taken for dead may still arrive. So once a
site has sent masked words about its rows, it sends none in a later epoch of the run. No two sums over different sets of
sites then have words of it: whatever others saw, and however many of them pool it, it is from one epoch, which
`dekrr.privacy.masks` is about.

So the others end with the model of all that were summed, as far as all of them have come: the agreed part as the rounds
left it; before that, the shared part; before that, the best of the models that column scales were learnt from, which is
a shared part of fewer features. What a site adds at home needs its own rows alone, and is there even if no model was
summed. A sum whose result some have not got counts for nobody, and no words are asked for again. Where there is no
local part, and no model yet, the run ends without one. Before the first masked words, the others begin anew.

Shares of self masks (Bonawitz et al., CCS 2017) would let a site drop out of one sum, but not of a run. The sums of a
run are about the same rows, and tell the same in part: two models of column scales over the same folds both have the
sums of the raw columns. If one was summed with a site and the next one without it, their difference would be its own
sum, whatever masks they had.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..disk import create
from ..errors import LossError
from ..protocols.masking import MOST_FLOODED, largest_exponents
from ..protocols.roll_call import RollCall
from ..protocols.run import Outcome
from ..protocols.site import Kept, Procedure, Site


class KeptOnDisk(Kept):
    """What a site keeps of a run when a site is lost; that it has sent masked words, it knows after a restart, too."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        with suppress(FileNotFoundError):
            self.summed_in = path.read_text("utf-8")

    def note_words(self) -> None:
        """Note, on the disk, that masked words are about to leave."""
        if self.summed_in is None:
            create(self._path, self.epoch.encode(), private=True)
        super().note_words()

    def forget(self) -> None:
        """Remove the note of a run that is over."""
        self._path.unlink(missing_ok=True)


def guarded(site: Site, train: Callable[[], Procedure[Outcome]], settings: object) -> Procedure[Outcome]:
    """Return the outcome of a training, or what there is to keep of the one that a loss has ended.

    `site`: its `kept` knows the epoch. `train`: makes the procedure of the epoch. `settings`: the run's settings:
    whether there are masks, and what the site does where these hide nothing.
    """
    kept = site.kept
    if kept.epoch and getattr(settings, "masks", False):
        roster = yield from RollCall(site).roster()
        refuses = getattr(settings, "lone_neighbor", "warn") == "refuse"
        own = [int(refuses and kept.has_sent), MOST_FLOODED - len(kept.reached)]
        any_refuses, missing = yield from largest_exponents(site, roster, own)
        if any_refuses and missing == MOST_FLOODED:
            raise LossError(
                f"site {site.name!r} ends the run after a loss ({kept.epoch}) in the middle of masked sums over rows: "
                "there is no model yet, and sums without a site, less those with it, would be its own. Start a run "
                'when all are there, or without the lost site; or go on after losses with lone_neighbor="warn"'
            )
        if any_refuses:
            reached: Outcome = kept.reached[MOST_FLOODED - missing - 1]  # as far as all have come
            if kept.at_home is not None:
                reached = yield from kept.at_home(reached, roster)
            if not reached.settled:
                reached.ended_by = f"a loss: {kept.epoch}{_lacking(reached)}"
            reached.roster = replace(reached.roster, diameter=roster.diameter)
            return reached
        if kept.has_sent:
            site.tell(
                f"site {site.name!r} sends masked sums again, without {kept.epoch}: less the first ones, they are the "
                'sums of the lost site alone. End such runs with lone_neighbor="refuse"'
            )
    kept.reached, kept.at_home = [], None
    outcome = yield from train()
    if not any(one is outcome for one in kept.reached):
        kept.reached.append(outcome)
    return outcome


def _lacking(outcome: Outcome) -> str:
    """Return, in words, what a model lacks because of a loss."""
    if outcome.neighbor_maps:
        return ""
    return ", before the agreed part" if outcome.shared is not None else ", before any model was summed"
