"""The columns that a model predicts from: their names and kinds, the range they had in training, and an example."""

from dataclasses import dataclass
from typing import Any, Literal

from ..frames import Column as Encoded
from ..model import SiteModel
from ..types import Array

Kind = Literal["number", "boolean", "category", "datetime"]
WORDS = {
    "number": "a number",
    "boolean": "true or false",
    "category": "a word or a number",
    "datetime": "a date or a time, as 2026-03-01 or 2026-03-01T12:00:00",
}
_JSON_TYPES = {"number": ["number"], "boolean": ["boolean"], "category": ["string"], "datetime": ["string"]}


@dataclass(frozen=True)
class Column:
    """One column of a request.

    Parameters
    ----------
    name : str
        For a model without column names, the column's position.
    kind : {"number", "boolean", "category", "datetime"}
    lower, upper : float or None
        What the values of a number lie between in training, as far as the model knows it.
    clipped : tuple of float, or None
        Where the model moves values to that lie beyond. The bounds are then those of most values, not of all.
    categories : tuple of str
        The words that the model knows.
    may_be_missing : bool
        Whether a row may have no value here.
    example : float, bool or str
    """

    name: str
    kind: Kind = "number"
    lower: float | None = None
    upper: float | None = None
    clipped: tuple[float, float] | None = None
    categories: tuple[str, ...] = ()
    may_be_missing: bool = False
    example: float | bool | str = 0.0

    @property
    def words(self) -> str:
        """What a value must be."""
        return f"{WORDS[self.kind]}, or null" if self.may_be_missing else WORDS[self.kind]

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the column's values.

        Examples
        --------
        >>> Column("temperature", lower=-10.0, upper=30.0, example=10.0).json_schema()
        {'type': 'number', 'examples': [10.0], 'description': 'From -10 to 30 in training.'}
        >>> Column("temperature", lower=-10.0, upper=30.0, clipped=(-30.0, 50.0)).json_schema()["description"]
        'Most values of training lie from -10 to 30. Values beyond -30 and 50 are taken for these.'
        """
        types = [*_JSON_TYPES[self.kind], *(["null"] if self.may_be_missing else [])]
        schema: dict[str, Any] = {"type": types if len(types) > 1 else types[0], "examples": [self.example]}
        if self.lower is not None and self.upper is not None:
            schema["description"] = f"From {self.lower:.6g} to {self.upper:.6g} in training."
            if self.clipped is not None:
                schema["description"] = (
                    f"Most values of training lie from {self.lower:.6g} to {self.upper:.6g}. Values beyond "
                    f"{self.clipped[0]:.6g} and {self.clipped[1]:.6g} are taken for these."
                )
        if self.categories:
            schema["description"] = f"The model knows {', '.join(self.categories)}; other words count as none of them."
        if self.kind == "datetime":
            schema["description"] = WORDS["datetime"].capitalize() + "."
        return schema


def columns_of(model: SiteModel) -> tuple[Column, ...]:
    """Return the columns that a model predicts from, as the user has them."""
    header = model.header
    bounds = model.scaling.tensors
    if header.encoding is not None:
        places = header.encoding.names_out
        return tuple(_of_encoded(column, bounds, places) for column in header.encoding.columns)
    names = header.columns or [str(j) for j in range(header.n_columns)]
    if not bounds:
        return tuple(Column(name) for name in names)
    found = []
    for j, name in enumerate(names):  # the response's bounds come last
        low, high = float(bounds["lower"][j]), float(bounds["upper"][j])
        clipped = (float(bounds["lowest"][j]), float(bounds["highest"][j])) if "lowest" in bounds else None
        found.append(Column(name, lower=low, upper=high, clipped=clipped, example=_middle(low, high)))
    return tuple(found)


def _of_encoded(column: Encoded, bounds: Any, places: list[str]) -> Column:
    lower = upper = clipped = None
    example: float | bool | str = float(f"{column.fill:.4g}")
    if column.kind == "number" and bounds:
        ends = [end for end in ("lower", "upper", "lowest", "highest") if end in bounds]
        lower, upper, *limits = (_in_units(column, bounds[end], places) for end in ends)
        clipped = (limits[0], limits[1]) if limits else None
    if column.kind == "boolean":
        example = True
    elif column.kind == "category":
        example = column.categories[0] if column.categories else ""
    elif column.kind == "datetime":
        day = f"{round(column.fill) or 2000:04d}-07-01"
        example = f"{day}T12:00:00" if "hour" in column.parts else day
    known = column.categories
    return Column(column.name, column.kind, lower, upper, clipped, known, may_be_missing=True, example=example)


def _in_units(column: Encoded, bounds: Array, places: list[str]) -> float:
    return float(bounds[places.index(column.name)]) * column.spread + column.fill


def _middle(lower: float, upper: float) -> float:
    return float(f"{(lower + upper) / 2:.4g}")


def example_rows(columns: tuple[Column, ...], *, named: bool) -> list[Any]:
    """Return one example row, as a request has it: an object where columns have names, a list otherwise."""
    return [{column.name: column.example for column in columns} if named else [column.example for column in columns]]
