"""The pages of public names: which methods a class's page has, and docstrings as Sphinx reads them."""

import inspect
import re
import sys
from dataclasses import fields
from importlib import import_module
from typing import Any

_SECTION = r"^Parameters\n-+\n.*?(?=^\w[\w ]*\n-{3,}$|\Z)"


def members_of(module: str, name: str) -> dict[str, list[str]]:
    """Return the public members of a class by kind: methods and properties of ours, and what scikit-learn adds.

    Methods come in the order of their definition, those of base classes first. Properties that the class's docstring
    describes already are left out.
    """
    kind = getattr(import_module(module), name)
    methods, properties = [], []
    for part in (part for base in reversed(kind.__mro__) if is_ours(base) for part in vars(base)):
        value = inspect.getattr_static(kind, part)
        if part.startswith("_") or part in methods + properties:
            continue
        if inspect.isfunction(value) or isinstance(value, classmethod | staticmethod):
            methods.append(part)
        elif isinstance(value, property) and not re.search(rf"^{part} :", inspect.getdoc(kind) or "", flags=re.M):
            properties.append(part)
    ours = [*methods, *properties]
    others = [part for part, _ in inspect.getmembers(kind, inspect.isroutine) if not part.startswith("_")]
    uses = any(base.__module__.startswith("sklearn") for base in kind.__mro__)
    return {
        "methods": methods,
        "properties": properties,
        "others": [part for part in others if part not in ours] if uses else [],
    }


def is_ours(kind: Any) -> bool:
    """Return whether a class or function is defined in this package."""
    return str(getattr(kind, "__module__", "")).startswith("dekrr")


def complete(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Add the parameters that a docstring leaves to a table or to others of its class; before numpydoc reads it."""
    text = "\n".join(lines)
    if what == "class":
        if section := settings_of(thing):
            text = re.sub(_SECTION, "", text, flags=re.M | re.S) + section
        text += parameters_of_chooser(thing)
    elif what in ("method", "function") and (section := section_on_parameters(name, text)):
        text = re.sub(_SECTION, "", text, flags=re.M | re.S).rstrip() + f"\n\n{section}"
    lines[:] = text.split("\n")


def escape(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Escape what reStructuredText would take for its own signs."""
    lines[:] = escaped(lines)


def settings_of(kind: Any) -> str:
    """Return the section on parameters of a struct of settings, from the table of settings."""
    from dekrr.settings import entries

    if not (kind.__module__.startswith("dekrr.settings") and hasattr(kind, "__struct_fields__")):
        return ""
    parts = ["", "", "Parameters", "----------"]
    for name, entry in entries(kind).items():
        parts += [f"{name} : {entry.words() or 'object'}", f"    {entry.setting.text}"]
    return "\n".join(parts)


def parameters_of_chooser(kind: Any) -> str:
    """Return the section on parameters of a transformer, which are those of its chooser."""
    if not hasattr(kind, "chooser_type"):
        return ""
    known: dict[str, list[str]] = {}
    for base in kind.chooser_type.__mro__:
        section = re.search(_SECTION, inspect.getdoc(base) or "", flags=re.M | re.S)
        for head, text in re.findall(
            r"^(\w.*)\n((?:    .*\n?)*)", section[0].split("---\n", 1)[1] if section else "", flags=re.M
        ):
            found = known.setdefault(head.split(" :")[0], [head, text])
            found[1] = found[1] or text
    names = [each.name for each in fields(kind.chooser_type)]
    parts = ["", "", "Parameters", "----------", *("\n".join(known[name]).rstrip() for name in names if name in known)]
    return "\n".join(parts)


def section_on_parameters(name: str, text: str) -> str:
    """Return the section on parameters of a method or a function, whose docstring is `text`.

    What several methods of a class have, or several functions of a module, is described at one of them: at that of a
    base class, at `fit` or `predict`, or at the first of the class or the module that does.
    """
    parts, attribute = name.split("."), []
    while ".".join(parts) not in sys.modules:
        attribute.insert(0, parts.pop())
    owner: Any = sys.modules[".".join(parts)]
    for part in attribute[:-1]:
        owner = getattr(owner, part)
    bases = [base for base in getattr(owner, "__mro__", ()) if is_ours(base)]
    thing = getattr(owner, attribute[-1])
    home = sys.modules[(owner if bases else thing).__module__]
    kinds = [one for one in vars(home).values() if inspect.isclass(one) and one.__module__ == home.__name__]
    same = [vars(base).get(each) for each in (attribute[-1], "fit", "predict") for base in bases]
    others = [one for place in (*bases, home, *kinds) for one in vars(place).values() if is_ours(one)]
    texts = [text, *(inspect.getdoc(one) or "" for one in (*same, *others) if inspect.isfunction(one))]
    known: dict[str, str] = {}
    for one in texts:
        known = entries_of(one) | known
    parameters = inspect.signature(thing).parameters.values()
    found = [known[one] for each in parameters if (one := str(each).split(":")[0].split("=")[0]) in known]
    return "\n".join(["Parameters", "----------", *found]) if found else ""


def entries_of(text: str) -> dict[str, str]:
    """Return what the section on parameters of a docstring says of each."""
    section = re.search(_SECTION, f"{text}\n", flags=re.M | re.S)
    entries = re.findall(r"^([\w*][\w, *]*?)( :.*)?\n((?: .*\n|\n(?= ))*)", section[0] if section else "", flags=re.M)
    return {
        name.strip(): f"{name.strip()}{kind}\n{about.rstrip()}"
        for heads, kind, about in entries
        for name in heads.split(",")
        if name != "Parameters"
    }


def escaped(lines: list[str]) -> list[str]:
    """Escape the bars of |x|, which would be a substitution; examples and literal blocks are left as they are."""
    found, literal = [], None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if literal is not None and line.strip() and indent <= literal:
            literal = None
        verbatim = literal is not None or line.lstrip().startswith((">>>", "..."))
        found.append(line if verbatim else line.replace("|", "\\|"))
        if literal is None and line.rstrip().endswith("::"):
            literal = indent
    return found
