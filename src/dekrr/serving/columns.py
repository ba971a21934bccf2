"""The columns that a model predicts from: their names and kinds, the range they had in training, and an example."""

from dataclasses import dataclass
from typing import Any, Literal

from ..model import SiteModel

Kind = Literal["number", "text"]


@dataclass(frozen=True)
class Column:
    """One column of a request.

    Parameters
    ----------
    name : str
        For a model without column names, the column's position.
    kind : {"number", "text"}
    lower, upper : float or None
        The bounds of the column over the rows of training, as far as the model knows them.

    Examples
    --------
    >>> Column("temperature", lower=-10.0, upper=30.0).example
    10.0
    """

    name: str
    kind: Kind = "number"
    lower: float | None = None
    upper: float | None = None

    @property
    def example(self) -> float:
        """A value in the middle of the column's bounds."""
        if self.lower is None or self.upper is None:
            return 0.0
        return float(f"{(self.lower + self.upper) / 2:.4g}")

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the column's values."""
        schema: dict[str, Any] = {"type": "number", "examples": [self.example]}
        if self.lower is not None and self.upper is not None:
            schema["description"] = f"From {self.lower:g} to {self.upper:g} in training."
        return schema


def columns_of(model: SiteModel) -> tuple[Column, ...]:
    """Return the columns that a model predicts from."""
    names = model.header.columns or [str(j) for j in range(model.header.n_columns)]
    bounds = model.scaling.tensors
    if not bounds:
        return tuple(Column(name) for name in names)
    ends = zip(names, bounds["lower"].tolist(), bounds["upper"].tolist(), strict=False)  # the response's come last
    return tuple(Column(name, lower=lower, upper=upper) for name, lower, upper in ends)


def example_rows(columns: tuple[Column, ...], *, named: bool) -> list[Any]:
    """Return one example row, as a request has it: an object where columns have names, a list otherwise."""
    return [{column.name: column.example for column in columns} if named else [column.example for column in columns]]
