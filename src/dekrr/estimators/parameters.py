"""An estimator's parameters, from the table of settings: defaults, checks, documentation, and settings of a run."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, dataclass_transform

import msgspec

from ..errors import SettingsError
from ..selection import transformers
from ..settings import Entry, entries

_OF_TABLE: Any = object()
_WIDTH = 112
_ATTRIBUTES = "    Attributes\n    ----------\n"
Settings = TypeVar("Settings", bound=msgspec.Struct)


@dataclass(frozen=True)
class Parameter:
    """Where a parameter is in the table of settings.

    Parameters
    ----------
    kind : type of Struct
        The struct that has it.
    entry : Entry
        Its entry there.
    objects : bool
        Whether an object may take the place of a name or number.
    """

    kind: type[msgspec.Struct]
    entry: Entry
    objects: bool


def setting(kind: type[msgspec.Struct], name: str, default: Any = _OF_TABLE, *, objects: bool = True) -> Any:
    """Return a parameter that is a setting.

    Parameters
    ----------
    kind : type of Struct
        Which struct has the setting.
    name : str
        What it is called there.
    default : object, optional
        Where the estimator's default is another than the table's.
    objects : bool, default=True
        Whether an object may take the place of a name or number, where the table allows it.
    """
    entry = entries(kind)[name]
    value = entry.in_process if default is _OF_TABLE else default
    return field(default=value, metadata={"parameter": Parameter(kind, entry, objects)})


@dataclass_transform(eq_default=False, kw_only_default=True)
def estimator(kind: type[Any]) -> Any:
    """Give a class the constructor that scikit-learn wants, and write its parameters into its docstring."""
    made = transformers.parameters(kind)
    if made.__doc__:  # Python can be told to leave docstrings out
        place, text = _ATTRIBUTES, f"{_documentation(made)}\n{_ATTRIBUTES}"
        if place not in made.__doc__:  # from 3.13 on, Python takes the indentation out of docstrings
            place, text = textwrap.dedent(place), textwrap.dedent(text)
        made.__doc__ = made.__doc__.replace(place, text)
    return made


def parameters_of(kind: Any) -> Mapping[str, Parameter]:
    """Return an estimator's parameters, by their names there."""
    return {each.name: each.metadata["parameter"] for each in fields(kind)}


def check(regressor: Any) -> None:
    """Refuse parameters that are not what they may be, all of them at once."""
    mistakes = {}
    for name, parameter in parameters_of(regressor).items():
        entry = replace(parameter.entry, name=name)
        mistake = entry.mistake(getattr(regressor, name), objects=parameter.objects)
        if mistake:
            mistakes[name] = mistake
    if mistakes:
        names = " and the ".join(f"{name!r} parameter" for name in mistakes)
        verb = "is" if len(mistakes) == 1 else "are"
        raise SettingsError(f"The {names} of {type(regressor).__name__} {verb} wrong: " + "; ".join(mistakes.values()))


def settings_of(regressor: Any, kind: type[Settings], **more: Any) -> Settings:
    """Return the settings of a run: an estimator's parameters, and for the others the defaults in one process.

    Parameters
    ----------
    regressor : estimator
    kind : type of Struct
        Parameters of this struct, and of the structs that it extends, are taken over.
    **more : object
        Settings to have instead.
    """
    values = {name: entry.in_process for name, entry in entries(kind).items()}
    for name, parameter in parameters_of(regressor).items():
        if issubclass(kind, parameter.kind):
            values[parameter.entry.name] = getattr(regressor, name)
    return kind(**values | more)


def _documentation(kind: Any) -> str:
    lines = ["Parameters", "----------"]
    for each in fields(kind):
        parameter: Parameter = each.metadata["parameter"]
        words = parameter.entry.words(objects=parameter.objects)
        lines.append(f"{each.name} : {words}, default={each.default!r}" if words else f"{each.name} : object, optional")
        lines += textwrap.wrap(parameter.entry.setting.text, _WIDTH, initial_indent="    ", subsequent_indent="    ")
    return textwrap.indent("\n".join(lines) + "\n", "    ")
