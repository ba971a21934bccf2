"""What differential privacy promises, and to whom."""

from typing import Annotated

import msgspec

from ..errors import SettingsError
from ..rules import POSITIVE, Rule, whole_number
from .schema import Setting, check

_CHANCE = Rule("a number between 0 and 1, or None", lambda value: value is None or 0 < value < 1)


class DifferentialPrivacy(msgspec.Struct, frozen=True):
    """The promise: (epsilon, delta) for one row of one site, against everyone outside it, over a whole run.

    With `colluders`, the promise is against any so many sites together.

    Neighbouring data sets differ in one row of one site, replaced by any other; row counts are public.

    Parameters
    ----------
    epsilon : float
    delta : float, optional
        None is N_j^-2 at a site with N_j rows.
    max_epsilon : float, default=10
        A larger epsilon promises next to nothing. It is refused unless this is raised.
    colluders : int, optional
        The most sites that pool what they see. Sites then share the noise, which masks allow, and have one model. None
        has no such limit: every site adds the full noise.

    Examples
    --------
    >>> from dekrr import DifferentialPrivacy
    >>> round(DifferentialPrivacy(epsilon=4.0).delta_for(n_rows=1000), 6)
    1e-06
    """

    epsilon: Annotated[float, Setting("The privacy budget: how much one row may change what others see.", POSITIVE)]
    delta: Annotated[float | None, Setting("The chance that the promise fails; None is N_j^-2.", _CHANCE)] = None
    max_epsilon: Annotated[float, Setting("A larger epsilon is refused.", POSITIVE, agreed=False)] = 10.0
    colluders: Annotated[
        int | None,
        Setting(
            "The most sites that may pool what they see; sites then share the noise. None allows any number, and "
            "every site adds the full noise.",
            whole_number(1).or_none(),
        ),
    ] = None

    def __post_init__(self) -> None:
        check("differential privacy", self)
        if self.epsilon > self.max_epsilon:
            raise SettingsError(
                f"epsilon={self.epsilon:g} promises next to nothing; raise max_epsilon if you want it all the same"
            )

    def delta_for(self, n_rows: int) -> float:
        """Return delta at a site with `n_rows` rows.

        Parameters
        ----------
        n_rows : int
        """
        return self.delta if self.delta is not None else float(max(n_rows, 2)) ** -2.0
