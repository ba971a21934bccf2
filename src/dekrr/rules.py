"""Rules for the values of parameters and settings: a check, and its description in words."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from .errors import SettingsError


@dataclass(frozen=True)
class Rule:
    """The values that a parameter may have.

    Parameters
    ----------
    words : str
        The description of an allowed value, for error messages.
    allows : callable
        Returns whether a value is allowed.
    """

    words: str
    allows: Callable[[Any], bool]

    def or_none(self) -> "Rule":
        """Return the rule that allows None too."""
        return Rule(f"{self.words}, or None", lambda value: value is None or self.allows(value))

    def or_several(self) -> "Rule":
        """Return the rule for a setting that can be tuned: it allows "auto" and a sequence of values, too."""

        def allows(value: Any) -> bool:
            if isinstance(value, str):
                return value == "auto"
            return self.allows(value) if np.ndim(value) == 0 else len(value) > 0 and all(map(self.allows, value))

        return Rule(f'{self.words}, several of them, or "auto"', allows)


def whole_number(least: int, most: float = math.inf) -> Rule:
    """Return the rule for an integer of at least `least`, and of at most `most`."""
    words = f"an integer of at least {least}" if math.isinf(most) else f"an integer from {least} to {most}"
    return Rule(words, lambda value: _is_whole(value) and least <= int(value) <= most)


def number(least: float, most: float = math.inf) -> Rule:
    """Return the rule for a finite number of at least `least`, and of at most `most`."""
    words = f"a number of at least {least:g}" if math.isinf(most) else f"a number from {least:g} to {most:g}"
    return Rule(words, lambda value: _is_finite(value) and least <= value <= most)


def one_of(*names: str) -> Rule:
    """Return the rule for one of some strings."""
    return Rule("one of " + ", ".join(map(repr, names)), lambda value: isinstance(value, str) and value in names)


def _is_whole(value: Any) -> bool:
    return not FLAG.allows(value) and isinstance(value, Integral)


def _is_finite(value: Any) -> bool:
    return not FLAG.allows(value) and isinstance(value, Real) and math.isfinite(float(value))


def _are_positive(values: Any) -> bool:
    return np.ndim(values) == 1 and len(values) > 0 and all(POSITIVE.allows(value) for value in values)


POSITIVE = Rule("a positive number", lambda value: _is_finite(value) and value > 0)
POSITIVES = Rule("positive numbers, one or more", _are_positive)
FLAG = Rule("True or False", lambda value: isinstance(value, bool | np.bool_))


def check(owner: str, values: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Raise one `SettingsError` that names all values that break their rule.

    Parameters
    ----------
    owner : str
        The name of the object that has the parameters.
    values : mapping of str to object
    rules : mapping of str to Rule

    Examples
    --------
    >>> check("Greedy", {"ridge": -1.0}, {"ridge": POSITIVE})
    Traceback (most recent call last):
        ...
    dekrr.errors.SettingsError: the 'ridge' parameter of Greedy is wrong: ridge must be a positive number, got -1.0
    """
    wrong = [name for name, rule in rules.items() if not rule.allows(values[name])]
    if wrong:
        names = " and the ".join(f"{name!r} parameter" for name in wrong)
        reasons = "; ".join(f"{name} must be {rules[name].words}, got {values[name]!r}" for name in wrong)
        verb = "is" if len(wrong) == 1 else "are"
        raise SettingsError(f"the {names} of {owner} {verb} wrong: {reasons}")
