"""How a setting is written down: with its type, what it may be, its default, and a line of documentation.

A setting is a field of a struct, and `Setting` beside its type has the rest. All front doors derive from that: the
estimators' defaults and checks, the checks of network.toml and site.toml, the options of the command line, the terms
that sites compare before a run, and the tables in the documentation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

import msgspec

from ..errors import SettingsError
from ..rules import Rule

_ANYTHING = Rule("anything", lambda value: True)


class _Same(Enum):
    """The mark of a default that is the same in one process and in a deployment."""

    SAME = "the same"

    def __repr__(self) -> str:
        return self.value


_SAME: Any = _Same.SAME


@dataclass(frozen=True)
class Setting:
    """What is known of a setting beside its type and default.

    Parameters
    ----------
    text : str
        A line of documentation.
    rule : Rule
        What it may be.
    in_process : object, optional
        The estimators' default, where it differs from a deployment's.
    objects : Rule, optional
        What an estimator takes in the place of a name or number.
    agreed : bool, default=True
        Whether all sites of a run must have the same value.
    """

    text: str
    rule: Rule = _ANYTHING
    in_process: Any = _SAME
    objects: Rule | None = None
    agreed: bool = True


@dataclass(frozen=True)
class Entry:
    """A row of the table of settings.

    Parameters
    ----------
    name : str
    default : object
        A deployment's; `msgspec.NODEFAULT` where it must be given.
    setting : Setting
    """

    name: str
    default: Any
    setting: Setting

    @property
    def in_process(self) -> Any:
        """The estimators' default."""
        return self.default if self.setting.in_process is _SAME else self.setting.in_process

    def mistake(self, value: Any, *, objects: bool = False) -> str | None:
        """Return what is wrong with a value, in words.

        Parameters
        ----------
        value : object
        objects : bool, default=False
            Whether an object may take the place of a name or number, where the setting allows it.
        """
        more = self.setting.objects if objects else None
        if self.setting.rule.allows(value) or (more is not None and more.allows(value)):
            return None
        return f"{self.name} is {value!r}; it must be {self.words(objects=objects)}"

    def words(self, *, objects: bool = False) -> str:
        """Return what the setting may be; nothing where it may be anything."""
        rule, more = self.setting.rule, self.setting.objects if objects else None
        words = "" if rule is _ANYTHING else rule.words
        return words if more is None else f"{words}; or {more.words}"


@cache
def entries(kind: type[msgspec.Struct]) -> Mapping[str, Entry]:
    """Return the settings in a struct, by name.

    Examples
    --------
    >>> from dekrr.settings import DeKRRSettings, entries
    >>> entries(DeKRRSettings)["alpha"].mistake(-1.0)
    'alpha is -1.0; it must be a positive number'
    """
    hints = get_type_hints(kind, include_extras=True)
    found = {}
    for field in msgspec.structs.fields(kind):
        settings = [part for part in get_args(hints[field.name]) if isinstance(part, Setting)]
        default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory
        default = default() if callable(default) else default
        found[field.name] = Entry(field.name, default, settings[0] if settings else Setting(""))
    return MappingProxyType(found)


def check(owner: str, values: msgspec.Struct) -> None:
    """Refuse settings that are not what they may be, all of them at once."""
    found = [entry.mistake(getattr(values, name), objects=True) for name, entry in entries(type(values)).items()]
    mistakes = [mistake for mistake in found if mistake]
    if mistakes:
        raise SettingsError(f"{owner}: " + "; ".join(mistakes))
