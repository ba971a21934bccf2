"""Pages of the reference that are made from the code: commands, messages, exit codes and public names."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import settings_page  # it is beside this file

NOTE = "<!-- This page is made from the code by docs/pages.py. -->\n\n"
MADE = ("commands.md", "messages.md", "errors.md", "api.md", "settings.md")


def write_pages(folder: Path) -> None:
    """Write the pages that are made from the code; a page that would not change is left as it is."""
    made = (commands_page(), messages_page(), errors_page(), names_page(), NOTE + settings_page.page())
    pages = dict(zip(MADE, made, strict=True))
    (folder / "reference").mkdir(exist_ok=True)
    for path in (folder / "reference").glob("*.md"):
        if path.name not in pages and path.read_text(encoding="utf-8").startswith(NOTE):
            path.unlink()  # an earlier version made it
    for path in (folder / "reference" / "api").glob("*.rst"):
        if not re.search(rf"^   {re.escape(path.stem.split('.')[-1])}$", pages["api.md"], re.MULTILINE):
            path.unlink()  # the name is not public any more
    for name, text in pages.items():
        path = folder / "reference" / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def commands_page() -> str:
    """Return the page of all commands with their options."""
    from dekrr.cli.app import COMMANDS
    from dekrr.cli.lazy import _imported

    parts = [NOTE + "# Commands\n\n`dekrr --help` lists them, and `dekrr COMMAND --help` shows this text.\n"]
    for name, (home, _) in sorted(COMMANDS.items()):
        for path, command in _with_commands(f"dekrr {name}", _imported(home, name)):
            parts.append(_of_command(path, command))
    return "\n".join(parts)


def _with_commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, child in sorted(getattr(command, "commands", {}).items(), key=lambda item: (item[0] == "all", item[0])):
        yield from _with_commands(f"{path} {name}", child)


def _of_command(path: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden and p.name != "help"]
    usage = " ".join([path, *(p.name.upper() for p in arguments), *(["[OPTIONS]"] if options else [])])
    text = inspect.cleandoc(command.help or "").replace("\f", "")
    lines = [f"{'##' if path.count(' ') == 1 else '###'} {path}\n", text, "", f"    {usage}", ""]
    if options:
        lines += ["| option | default | what it is |", "|---|---|---|"]
        for option in options:
            default = option.default
            shown = "" if default in (None, (), [], False) or callable(default) else f"`{default}`"
            names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
            about = re.sub(r"\s+", " ", option.help or "").replace("|", "\\|").replace("<", "\\<")
            lines.append(f"| {names} | {shown} | {about} |")
        lines.append("")
    return "\n".join(lines)


def messages_page() -> str:
    """Return the page of everything that may leave a site."""
    from dekrr import messages

    kinds = [
        kind
        for kind in vars(messages).values()
        if inspect.isclass(kind) and kind.__module__ == messages.__name__ and hasattr(kind, "__struct_fields__")
    ]
    parts = [
        NOTE + "# Messages\n\nNothing leaves a site but these messages. [The protocol](../protocol.md) has their order,"
        " and [privacy](../privacy.md#who-sees-what) says what each of them tells, and whom.\n"
    ]
    for kind in kinds:
        parts += [f"## {kind.__name__}\n", _as_markdown(inspect.getdoc(kind) or ""), ""]
    return "\n".join(parts)


def _as_markdown(docstring: str) -> str:
    """Return a numpydoc docstring as Markdown: sections become bold words, entries a list."""
    text = re.sub(r"^(\w[\w ]*)\n-{3,}$", r"**\1**\n", docstring, flags=re.M)
    text = re.sub(r"^(\w[\w, ]*) : (.*)$", r"- `\1`: \2", text, flags=re.M)
    return re.sub(r"^    (?=\S)", "  ", text, flags=re.M)


_OTHER_CODES = {
    0: "The command did what it was asked to do.",
    2: "The command line itself was wrong: an unknown command or option, or a missing one.",
    130: "A single run was stopped by Ctrl-C. The same command resumes from its checkpoint.",
    143: "A single run was stopped by SIGTERM. The same command resumes from its checkpoint.",
}


def errors_page() -> str:
    """Return the page of the errors, and of the exit codes of `dekrr`."""
    from dekrr import errors

    rows = [(code, "", text) for code, text in _OTHER_CODES.items()]
    for kind in (k for k in vars(errors).values() if inspect.isclass(k) and issubclass(k, errors.DekrrError)):
        first = re.sub(r"\s+", " ", (inspect.getdoc(kind) or "").split("\n\n")[0])
        home = "dekrr" if kind.__name__ in import_module("dekrr").__all__ else "dekrr.errors"
        name = f"{{py:class}}`~{home}.{kind.__name__}`"
        rows.append((getattr(kind, "exit_code", 1), f"{name} (`{kind.__bases__[0].__name__}`)", first))
    table = "".join(f"| {code} | {name} | {text} |\n" for code, name, text in sorted(rows))
    return (
        NOTE
        + "# Errors and exit codes\n\nAll errors of dekrr are `DekrrError`. In Python they are raised. A command prints"
        " an error as one line to standard error, and ends with the code of its kind.\n\n"
        f"| code | error | when |\n|--:|---|---|\n{table}\n{_WHAT_TO_DO}"
    )


_WHAT_TO_DO = """## What to do

The last line on standard error says what happened. A standing site does not end when one of its runs fails: the whole
reason is in `dekrr study show`, in `dekrr status`, in the site's log and on its page.

**1: something cannot be used.** The rows, a setting, a key or a file is wrong; the message names what, where, and
what to do. Starting again does not help until that is done. Frequent causes:

- *is already there; `--force` replaces it*: the run's model exists. Give the run a new id, or use studies.
- *gave other rows in one pass than in the next*: the file was written while it was read. Write a new one and rename it.
- *this run separates ... rows*: too few rows have changed since an earlier run. Wait for more.
- *is in use: is this site running already?*: another process has the folder.
- *is valid from ... not now*: the certificate has expired or is not valid yet, or the clock is wrong.

**3: a site did not show up** within `start_patience`. Have the sites that the message names been started? Do the files
name each other as neighbours? Of each pair, can the site whose name sorts first be reached by the other?

**4: the others have declared this site gone.** It was away for longer than the patience, or came back with other rows.
It can take part in the next run.

**5: cut off.** At most half of the sites can be reached. After a blackout, start the sites again within
`start_patience` of each other: each resumes from its checkpoint.

**6: no agreement.** Sites differ in settings, columns, neighbours or versions, or the checkpoint belongs to other rows.
The message names the difference and the sites. Nothing that depends on rows was sent.
"""


_KINDS = {  # in the order in which a newcomer needs them
    "Estimators": lambda v, home: home.startswith("dekrr.estimators") and v.__name__.startswith("DeKRR"),
    "Comparison": lambda v, home: home == "dekrr.lab.comparing",
    "Models": lambda v, home: home.startswith("dekrr.model"),
    "Baselines": lambda v, home: home.startswith("dekrr.estimators"),
    "Features, kernels and solvers": lambda v, home: home.startswith(
        ("dekrr.selection", "dekrr.kernels", "dekrr.solvers", "dekrr.features")
    ),
    "Settings": lambda v, home: home.startswith("dekrr.settings"),
    "Errors": lambda v, home: home.startswith("dekrr.errors"),
}
PUBLIC_MODULES = (
    "dekrr.lab.comparing",
    "dekrr.data",
    "dekrr.errors",
    "dekrr.features",
    "dekrr.kernels",
    "dekrr.metrics",
    "dekrr.model",
    "dekrr.model",
    "dekrr.model_selection",
    "dekrr.networks.base",
    "dekrr.networks.local",
    "dekrr.networks.mpi",
    "dekrr.plot",
    "dekrr.settings",
    "dekrr.solvers",
    "dekrr.topology",
)


_CONSTANTS = {  # names that are neither classes nor functions, so that no docstring describes them
    "dekrr.data.CATALOGUE": "the data sets of the paper by name, with where to get each",
    "dekrr.model_selection.OWN": "the `Scorer` of each site's model on the site's own rows",
    "dekrr.model_selection.UNION": "the `Scorer` of every site's model on all rows",
    "dekrr.networks.base.Neighbors": "the type of a graph: each site with its neighbours",
    "dekrr.networks.base.Observer": "the type of a function that is told of each exchange of messages",
    "dekrr.settings.ALONE": "settings that leave DeKRR alone, without the other parts: `DeKRRRegressor(**ALONE)`",
    "dekrr.settings.GRIDS": 'what "auto" chooses from where sigma, alpha and consensus are tuned',
    "dekrr.settings.GONE": "values of settings that are deprecated, for which the defaults stand",
    "dekrr.settings.DEPLOYED": "which choices of a setting a node takes, where those are fewer than an estimator takes",
    "dekrr.settings.PRIVATE": 'what "auto" is in a private run, which must not look at rows',
    "dekrr.settings.WIRE_PRECISIONS": "the values of `wire_precision`",
    "dekrr.settings.WITH_SHARED": 'what "auto" is where there is a shared part',
}


def names_page() -> str:
    """Return the page of the public names, each with a page of its own."""
    import dekrr

    left = {name: getattr(dekrr, name) for name in dekrr.__all__ if name != "__version__"}
    parts = [
        NOTE + "# Public names\n\nThese names stay as they are between minor versions;"
        " [stability](../about/index.md#what-you-can-rely-on) says what is promised.\n"
    ]
    for title, fits in [*_KINDS.items(), ("More", lambda v, home: True)]:
        names = [name for name, value in left.items() if fits(value, getattr(value, "__module__", ""))]
        left = {name: value for name, value in left.items() if name not in names}
        if names:
            parts.append(_summary(title, "dekrr", names))
    for module in PUBLIC_MODULES:
        found = import_module(module)
        parts_of_it = {name: getattr(found, name) for name in found.__all__ if name not in dekrr.__all__}
        names = [name for name, part in parts_of_it.items() if inspect.isclass(part) or inspect.isroutine(part)]
        if names:
            parts.append(_summary(module, module, sorted(names)))
        constants = [name for name in parts_of_it if name not in names]
        parts += [f"- `{module}.{name}`: {_CONSTANTS[f'{module}.{name}']}" for name in constants]
        parts += [""] if constants else []
    return "\n".join(parts)


def _summary(title: str, module: str, names: list[str]) -> str:
    listed = "\n".join(f"   {name}" for name in names)
    return (
        f"## {title}\n\n```{{eval-rst}}\n.. currentmodule:: {module}\n\n.. autosummary::\n   :toctree: api\n"
        f"   :nosignatures:\n\n{listed}\n```\n"
    )
