"""Commands that are imported when they are called, so that `dekrr --help` loads none of them."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group


def lazy_app(commands: Mapping[str, tuple[str, str]], **settings: Any) -> typer.Typer:
    """Return an application whose commands are imported when they are called.

    Each has a home in dekrr, "module" or "module:attribute", and a line for --help. The attribute, by default of the
    command's name, is a function, or an application with its own commands. The settings are those of `typer.Typer`.
    """

    class Group(TyperGroup):
        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name, stand_in, rest = super().resolve_command(ctx, args)
            return name, stand_in if name is None else _imported(commands[name][0], name), rest

    app = typer.Typer(cls=Group, **settings)
    for name, (_, about) in commands.items():
        app.command(name, help=about)(_stand_in)
    return app


def _stand_in() -> None:
    """Stand in for a command in the list of commands; `resolve_command` replaces it by the real command."""


def _imported(home: str, name: str) -> Any:
    module, _, attribute = home.partition(":")
    found = getattr(import_module(f"dekrr.{module}"), attribute or name)
    if isinstance(found, typer.Typer):
        parent = typer.Typer()
        parent.add_typer(found, name=name)
    else:
        parent = typer.Typer(rich_markup_mode=None)  # in a frame, the help of an option has 18 of 80 characters
        parent.command(name)(found)
    return get_group(parent).commands[name]
