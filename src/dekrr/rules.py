"""Rules for the values of parameters and settings: a check, and its description in words."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np

from .errors import SettingsError

# The graphs that `dekrr.topology` builds. They are named here because a node checks names and does without networkx.
TOPOLOGIES = ("auto", "ring", "cycles", "complete", "grid", "star", "random_regular", "watts_strogatz", "erdos_renyi")

LARGEST = 1e100  # of a row's numbers: squares of larger ones, and sums of them, can overflow


@dataclass(frozen=True)
class Rule:
    """The values that a parameter may have."""

    words: str  # the description of an allowed value, for error messages
    allows: Callable[[Any], bool] = field(repr=False)  # returns whether a value is allowed

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
    return Rule(words, lambda value: _is_finite(value) and isinstance(value, Integral) and least <= int(value) <= most)


def number(least: float, most: float = math.inf) -> Rule:
    """Return the rule for a finite number of at least `least`, and of at most `most`."""
    words = f"a number of at least {least:g}" if math.isinf(most) else f"a number from {least:g} to {most:g}"
    return Rule(words, lambda value: _is_finite(value) and least <= value <= most)


def one_of(*names: str) -> Rule:
    """Return the rule for one of some strings."""
    return Rule("one of " + ", ".join(map(repr, names)), lambda value: isinstance(value, str) and value in names)


def with_methods(*names: str) -> Rule:
    """Return the rule for an object, not a class, that has some methods."""
    words = "an object with the method" + "s" * (len(names) > 1) + " " + " and ".join(names)
    return Rule(words, lambda value: not isinstance(value, type) and all(callable(getattr(value, n, 0)) for n in names))


def _is_finite(value: Any) -> bool:
    return not FLAG.allows(value) and isinstance(value, Real) and math.isfinite(float(value))


def _are_positive(values: Any) -> bool:
    return np.ndim(values) == 1 and len(values) > 0 and all(POSITIVE.allows(value) for value in values)


def _are_counts(values: Any) -> bool:
    values = list(values.values()) if isinstance(values, Mapping) else values
    return np.ndim(values) == 1 and all(map(whole_number(1).allows, values))


def _is_collection(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str)


def or_auto(rule: Rule) -> Rule:
    """Return the rule that allows "auto" too."""
    return Rule(
        f'"auto", {rule.words}', lambda value: value == "auto" if isinstance(value, str) else rule.allows(value)
    )


POSITIVE = Rule("a positive number", lambda value: _is_finite(value) and value > 0)
POSITIVES = Rule("positive numbers, one or more", _are_positive)
COLUMN_SCALES = Rule(
    "sequences of positive numbers, one for each column",
    lambda values: _is_collection(values) and all(map(_are_positive, values)),
)
FLAG = Rule("True or False", lambda value: isinstance(value, bool | np.bool_))
COUNTS = Rule("a mapping of site to such numbers, or a sequence in the order of the sorted sites", _are_counts)
PAIR = Rule("a pair, lower and upper values", lambda value: _is_collection(value) and len(value) == 2)
SEVERAL = Rule(
    "a sequence of two values or more",
    lambda values: np.ndim(values) == 1 and len(set(np.asarray(values).tolist())) > 1,
)
EDGES = Rule("edges or a networkx graph", lambda value: isinstance(value, Iterable) and not isinstance(value, str))
CALLABLE = Rule("a function of the graph that returns a Network", callable)
CALLABLES = Rule(
    "a sequence of functions", lambda values: isinstance(values, list | tuple) and all(map(callable, values))
)
RANDOM_STATE = Rule(
    "an integer from 0 to 4294967295, a RandomState",
    lambda value: isinstance(value, np.random.RandomState) or whole_number(0, 2**32 - 1).allows(value),
)


def check(owner: str, values: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Raise one `SettingsError` that names all values of the owner that break their rule."""
    wrong = [name for name, rule in rules.items() if not rule.allows(values[name])]
    if wrong:
        names = " and the ".join(f"{name!r} parameter" for name in wrong)
        reasons = "; ".join(f"{name} must be {rules[name].words}, got {values[name]!r}" for name in wrong)
        verb = "is" if len(wrong) == 1 else "are"
        raise SettingsError(f"the {names} of {owner} {verb} wrong: {reasons}")


def is_number(text: Any) -> bool:
    """Return whether a text is that of a number, or another value is one."""
    try:
        float(text)
    except (TypeError, ValueError):
        return False
    return True


def is_missing(value: Any) -> bool:
    """Return whether a value stands for one that is not there: None, NaN, NaT, pandas.NA."""
    if value is None:
        return True
    if isinstance(value, str):
        return False
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # a comparison with pandas.NA has no truth value, nor has one of arrays
        return type(value).__name__ == "NAType"
