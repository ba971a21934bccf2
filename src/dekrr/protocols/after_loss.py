"""What a site does when another one is lost: masked sums over rows are formed over one set of sites, ever.

A sum over all sites less a sum over all but one is that one's own sum, which the masks were to hide. A neighbour's word
is enough to declare a loss, and words of a site that was taken for dead may still arrive. So once a site has sent
masked words about its rows, it sends none in a later epoch of the run. No two sums over different sets of sites then
have words of it: whatever others saw, and however many of them pool it, it is from one epoch, which
`dekrr.privacy.masks` is about.

A run whose sums were all formed before the loss needs no others, and ends with the model of all that were summed: the
shared part is there, the agreed part stays as the rounds left it, and what the site adds at home needs its own rows. A
run that lost a site while sums were still to come ends without a model. Before the first masked words, the others
begin anew.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..disk import create
from ..errors import LossError
from .masking import largest_exponents
from .roll_call import RollCall
from .run import Outcome
from .site import Kept, Procedure, Site


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

    Parameters
    ----------
    site : Site
        Its `kept` knows the epoch.
    train : callable
        Makes the procedure of the epoch.
    settings : object
        The run's settings: whether there are masks, and what the site does where these hide nothing.
    """
    kept = site.kept
    if kept.epoch and getattr(settings, "masks", False):
        roster = yield from RollCall(site).roster()
        refuses = getattr(settings, "lone_neighbor", "warn") == "refuse"
        own = [int(refuses and kept.has_sent), int(kept.outcome is None)]
        any_refuses, any_unready = yield from largest_exponents(site, roster, own)
        if any_refuses and any_unready:
            raise LossError(
                f"site {site.name!r} ends the run after a loss ({kept.epoch}) in the middle of masked sums over rows: "
                "sums without a site, less those with it, would be its own. Start a run when all are there, or without "
                'the lost site; or let sites go on after losses with lone_neighbor="warn"'
            )
        if any_refuses:
            reached: Outcome = kept.outcome
            if kept.at_home is not None and reached.home is None:
                yield from kept.at_home(reached)
            if reached.rounds and not reached.settled:
                reached.ended_by = f"a loss: {kept.epoch}"
            reached.roster = replace(reached.roster, diameter=roster.diameter)
            return reached
        if kept.has_sent:
            site.tell(
                f"site {site.name!r} sends masked sums again, without {kept.epoch}: less the first ones, they are the "
                'sums of the lost site alone. End such runs with lone_neighbor="refuse"'
            )
    kept.outcome = kept.at_home = None
    kept.outcome = outcome = yield from train()
    return outcome
