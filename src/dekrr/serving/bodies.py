"""The bodies of requests and answers: JSON, CSV and Arrow. Every row that comes in is read here and nowhere else.

A body is read once by a fast reader. If that fails, a slow one reads it again to say which row and which column is
wrong, and why. Nothing here is unpickled."""

import io
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from ..errors import DataError, one_line
from ..model import SiteModel
from ..rules import LARGEST, is_number
from ..tables.columns import LONGEST, arrays_of
from ..tables.columns import Column as Encoded
from ..tables.sources import Batch, inputs_of
from ..types import Array

Kind = Literal["number", "boolean", "category", "datetime"]
WORDS = {
    "number": "a number",
    "boolean": "true or false",
    "category": "a word or a number",
    "datetime": "a date or a time, as 2026-03-01 or 2026-03-01T12:00:00",
}
_JSON_TYPES: dict[str, Any] = {"number": float, "boolean": bool, "category": str | float, "datetime": str}


@dataclass(frozen=True)
class RequestColumn:
    name: str  # for a model without column names, the column's position
    kind: Kind = "number"
    lower: float | None = None  # what the values of a number lie between in training, as far as the model knows it
    upper: float | None = None
    clipped: tuple[float, float] | None = None  # where values beyond are moved to; then the bounds are those of most
    categories: tuple[str, ...] = ()  # the words that the model knows
    may_be_missing: bool = False
    example: float | bool | str = 0.0

    @property
    def words(self) -> str:
        return f"{WORDS[self.kind]}, or null" if self.may_be_missing else WORDS[self.kind]

    @property
    def json_type(self) -> Any:
        return _JSON_TYPES[self.kind] | None if self.may_be_missing else _JSON_TYPES[self.kind]

    @property
    def described_type(self) -> Any:
        """The type with its limits and a description, as OpenAPI has it.

        Examples
        --------
        >>> msgspec.json.schema(RequestColumn("wind", lower=0.0, upper=30.0, example=10.0).described_type)
        {'description': 'From 0 to 30 in training.', 'examples': [10.0], 'type': 'number'}
        """
        kind = self.json_type
        if self.may_be_missing and self.kind == "number":  # as `dekrr.tables.columns` reads them
            kind = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)] | None
        elif self.kind == "category":
            kind = Annotated[str, msgspec.Meta(max_length=LONGEST)] | float | (None if self.may_be_missing else float)
        return Annotated[kind, msgspec.Meta(description=self._about, examples=[self.example])]

    @property
    def _about(self) -> str | None:
        if self.categories:
            return f"The model knows {', '.join(self.categories)}; other words count as none of them."
        if self.kind == "datetime":
            return WORDS["datetime"].capitalize() + "."
        if self.lower is None or self.upper is None:
            return None
        bounds = f"rom {self.lower:.6g} to {self.upper:.6g}"
        if self.clipped is None:
            return f"F{bounds} in training."
        ends = " and ".join(f"{end:.6g}" for end in self.clipped)
        return f"Most values of training lie f{bounds}. Values beyond {ends} are taken for these."


def columns_of(model: SiteModel) -> tuple[RequestColumn, ...]:
    """Return the columns that a model predicts from, as the user has them."""
    header = model.header
    bounds = model.scaling.tensors
    if header.encoding is not None:
        places = header.encoding.names_out
        return tuple(_of_encoded(column, bounds, places) for column in header.encoding.used)
    names = header.columns or [str(j) for j in range(header.n_columns)]
    if not bounds:
        return tuple(RequestColumn(name) for name in names)
    found = []
    for j, name in enumerate(names):  # the response's bounds come last
        low, high = float(bounds["lower"][j]), float(bounds["upper"][j])
        clipped = (float(bounds["lowest"][j]), float(bounds["highest"][j])) if "lowest" in bounds else None
        found.append(
            RequestColumn(name, lower=low, upper=high, clipped=clipped, example=float(f"{(low + high) / 2:.4g}"))
        )
    return tuple(found)


def _of_encoded(column: Encoded, bounds: Any, places: list[str]) -> RequestColumn:
    lower = upper = clipped = None
    example: float | bool | str = float(f"{column.fill:.4g}")
    if column.kind == "number" and bounds:
        ends = [end for end in ("lower", "upper", "lowest", "highest") if end in bounds]
        place = places.index(column.name)
        lower, upper, *limits = (float(bounds[end][place]) * column.spread + column.fill for end in ends)
        clipped = (limits[0], limits[1]) if limits else None
    if column.kind == "boolean":
        example = True
    elif column.kind == "category":
        example = column.categories[0] if column.categories else ""
    elif column.kind == "datetime":
        day = f"{round(column.fill) or 2000:04d}-07-01"
        example = f"{day}T12:00:00" if "hour" in column.parts else day
    known = column.categories
    kind: Kind = column.kind  # type: ignore[assignment]  # a column that is left out is not served
    return RequestColumn(column.name, kind, lower, upper, clipped, known, may_be_missing=True, example=example)


def example_rows(columns: tuple[RequestColumn, ...], *, named: bool) -> list[Any]:
    """Return one example row, as a request has it: an object where columns have names, a list otherwise."""
    return [{column.name: column.example for column in columns} if named else [column.example for column in columns]]


JSON, CSV, ARROW = "application/json", "text/csv", "application/vnd.apache.arrow.stream"
MEDIA_TYPES = (JSON, CSV, ARROW)
_WHERE = "the request"
_encoder = msgspec.json.Encoder()
Rows = Array | dict[str, np.ndarray]


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request is not answered, as RFC 9457 has it; rows count from 0."""

    title: str
    status: int
    detail: str
    row: int | None = None
    column: str | None = None


class Refusal(DataError):
    """A request that is not answered, by an HTTP status, and for some after how many seconds or with which methods."""

    def __init__(
        self,
        status: int,
        text: str,
        *,
        row: int | None = None,
        column: str | None = None,
        retry_after: int | None = None,
        allow: str | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.row = row
        self.column = column
        self.retry_after = retry_after
        self.allow = allow


def media_type_of(header: str, *, default: str = JSON) -> str:
    """Return the media type that a Content-Type or Accept header names, of those that are offered.

    Examples
    --------
    >>> media_type_of("text/csv; charset=utf-8")
    'text/csv'
    >>> media_type_of("*/*", default="application/json")
    'application/json'
    """
    if header in MEDIA_TYPES:
        return header
    offered = [part.partition(";")[0].strip().lower() for part in header.split(",")]
    for name in offered:
        if name in MEDIA_TYPES:
            return name
    if not header or "*/*" in offered:
        return default
    raise Refusal(415, f"{one_line(header)} is not offered; use {', '.join(MEDIA_TYPES)}")


class RowReader:
    """Reads the rows of request bodies for one model."""

    def __init__(self, model: SiteModel, max_rows: int) -> None:
        self.columns = columns_of(model)
        self.named = model.header.columns is not None or model.header.encoding is not None
        self._encoded = model.header.encoding is not None
        self._names = [column.name for column in self.columns]
        self._max_rows = max_rows
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(body_type(self.columns, named=self.named))
        self._readers: dict[str, Callable[[bytes], Rows]] = {
            JSON: self._from_json,
            CSV: self._from_csv,
            ARROW: self._from_arrow,
        }

    def __call__(self, body: bytes, media_type: str) -> Rows:
        """Return the rows of a body as `SiteModel.predict` takes them; raise `Refusal` if it has none, or wrong ones.

        They are an array of shape (n_rows, n_columns), or where the model encodes columns a mapping of name to array.
        """
        try:
            rows = self._readers[media_type](body)
        except Refusal:
            raise
        except DataError as error:
            raise Refusal(422, str(error)) from None
        except UnicodeDecodeError as error:
            raise Refusal(422, f"the body has text that is not UTF-8: {error.reason}") from None
        n_rows = n_rows_of(rows)
        if not n_rows:
            raise Refusal(422, "the request has no rows")
        if n_rows > self._max_rows:
            raise Refusal(413, f"the request has {n_rows} rows; at most {self._max_rows} are taken at a time")
        return rows

    def _from_json(self, body: bytes) -> Rows:
        try:
            rows = self._decoder.decode(body).rows
            values = [msgspec.structs.astuple(row) for row in rows] if self.named else rows
            if self._encoded:
                return {
                    column.name: _cells(column, [row[j] for row in values]) for j, column in enumerate(self.columns)
                }
            array = np.array(values, dtype=np.float64)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ValueError) as error:
            raise explain_json(body, self.columns, error, named=self.named) from None
        if array.ndim != 2 or array.shape[1] != len(self._names):
            if not len(array):
                return np.empty((0, len(self._names)))
            raise explain_json(body, self.columns, ValueError("rows differ in length"), named=self.named)
        return array

    def _from_csv(self, body: bytes) -> Rows:
        import pyarrow as pa
        from pyarrow import csv

        names = self._names if self.named else [f"f{j}" for j in range(len(self._names))]
        reading = csv.ReadOptions(autogenerate_column_names=not self.named, use_threads=False)
        types = {
            name: pa.float64() if column.kind == "number" else pa.string()
            for name, column in zip(names, self.columns, strict=True)
            if column.kind != "boolean"
        }
        converting = csv.ConvertOptions(column_types=types, strings_can_be_null=self._encoded)
        try:
            table = csv.read_csv(io.BytesIO(body), read_options=reading, convert_options=converting)
        except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
            raise explain_csv(body, names, self.columns, reading, error) from None
        if not self.named and table.num_columns != len(names):
            raise Refusal(422, f"expected lines of {len(names)} numbers, got lines of {table.num_columns}")
        return self._from_table(table, names)

    def _from_arrow(self, body: bytes) -> Rows:
        import pyarrow as pa

        try:
            for message in pa.ipc.MessageReader.open_stream(body):
                if is_compressed(message.metadata.to_pybytes()):
                    raise Refusal(415, "compressed Arrow buffers are not taken: send them as they are")
            table = pa.ipc.open_stream(body).read_all()
            table.validate(full=True)
        except (pa.ArrowException, OSError, struct.error, EOFError, IndexError) as error:
            raise Refusal(422, f"the body is not an Arrow stream: {one_line(str(error))}") from None
        if not self.named and table.num_columns != len(self._names):
            raise Refusal(422, f"expected {len(self._names)} columns, got {table.num_columns}")
        return self._from_table(table, self._names if self.named else table.column_names)

    def _from_table(self, table: Any, names: Sequence[str]) -> Rows:
        _check_names(table.column_names, names)
        if self._encoded:
            return dict(zip(names, arrays_of(table, names), strict=True))
        return inputs_of(Batch(_WHERE, 0, table), names)


def n_rows_of(rows: Rows) -> int:
    return len(next(iter(rows.values()), ())) if isinstance(rows, dict) else len(rows)


def _cells(column: RequestColumn, values: Sequence[Any]) -> np.ndarray:
    """Return the cells of a column; a category is a word, also where some rows have it as a number."""
    array = np.empty(len(values), dtype=object)
    array[:] = [f"{v:.15g}" if isinstance(v, float) else v for v in values] if column.kind == "category" else values
    return array


def body_type(columns: Sequence[RequestColumn], *, named: bool, described: bool = False) -> Any:
    """Return the type of a JSON body; msgspec checks the names and types of columns while it decodes.

    With `described`, it is what OpenAPI tells callers, with the limits that are checked later.
    """
    row: Any = list[float]
    if named:
        types = [column.described_type if described else column.json_type for column in columns]
        wire = {f"column_{j}": column.name for j, column in enumerate(columns)}
        fields = list(zip(wire, types, strict=True))
        row = msgspec.defstruct("Row", fields, rename=wire, gc=False)  # further columns are ignored
    elif described:
        row = Annotated[row, msgspec.Meta(min_length=len(columns), max_length=len(columns))]
    rows = Annotated[list[row], msgspec.Meta(min_length=1)] if described else list[row]
    return msgspec.defstruct("Body", [("rows", rows)], forbid_unknown_fields=True)


def explain_json(body: bytes, columns: Sequence[RequestColumn], error: Exception, *, named: bool) -> Refusal:
    """Return what is wrong with a JSON body, in words."""
    try:
        given = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as syntax:
        return Refusal(400, f"the body is not JSON: {one_line(str(syntax))}")
    if not isinstance(given, dict) or not isinstance(given.get("rows"), list):
        return Refusal(422, 'the body must be an object {"rows": [...]}, with one entry per row')
    others = [name for name in given if name != "rows"]
    if others:
        return Refusal(422, f"the body has unknown fields {_listed(others)}; it may have only rows")
    names = [column.name for column in columns]
    for i, row in enumerate(given["rows"]):
        refusal: Refusal | None
        if not named:
            refusal = _wrong_list(i, row, columns)
        elif isinstance(row, dict):
            refusal = _wrong_columns(list(row), names, f"row {i}", i) or _wrong_value(i, row, columns)
        else:
            refusal = Refusal(422, f"row {i} must be an object with the columns {_listed(names)}", row=i)
        if refusal is not None:
            return refusal
    return Refusal(422, one_line(str(error)))


def _wrong_list(i: int, row: Any, columns: Sequence[RequestColumn]) -> Refusal | None:
    if not isinstance(row, list):
        return Refusal(422, f"row {i} must be a list of {len(columns)} numbers", row=i)
    if len(row) != len(columns):
        return Refusal(422, f"row {i} has {len(row)} numbers instead of {len(columns)}", row=i)
    return _wrong_value(i, {column.name: value for column, value in zip(columns, row, strict=True)}, columns)


def _wrong_columns(given: Sequence[str], names: Sequence[str], where: str, row: int | None = None) -> Refusal | None:
    missing = [name for name in names if name not in given]
    unknown = [name for name in given if name not in names]
    if not missing:  # further columns are ignored, as `SiteModel.predict` does
        return None
    parts = [f"lacks the column{'s' * (len(missing) > 1)} {_listed(missing)}"]
    if unknown:
        parts.append(f"has the unknown column{'s' * (len(unknown) > 1)} {_listed(unknown)}")
    return Refusal(422, f"{where} {' and '.join(parts)}; the model takes {_listed(names)}", row=row, column=missing[0])


def _wrong_value(i: int, row: Mapping[str, Any], columns: Sequence[RequestColumn]) -> Refusal | None:
    for column in columns:
        value = row[column.name]
        try:
            msgspec.convert(value, column.json_type)
        except msgspec.ValidationError:
            shown = one_line(msgspec.json.encode(value).decode())
            text = f"row {i}, column {column.name!r} is {shown}; it must be {column.words}"
            return Refusal(422, text, row=i, column=column.name)
    return None


def explain_csv(
    body: bytes, names: Sequence[str], columns: Sequence[RequestColumn], reading: Any, error: Exception
) -> Refusal:
    """Return what is wrong with a CSV body, in words; the line of the header is not counted as a row."""
    import pyarrow as pa
    from pyarrow import csv

    words = one_line(str(error))
    try:
        text = csv.ConvertOptions(column_types={name: pa.string() for name in names}, strings_can_be_null=False)
        table = csv.read_csv(io.BytesIO(body), read_options=reading, convert_options=text)
        _check_names(table.column_names, names)
    except Refusal as refusal:
        return refusal
    except (pa.ArrowException, UnicodeDecodeError) as syntax:
        return Refusal(422, f"the body is not a CSV table: {one_line(str(syntax))}")
    for name, column in zip(names, columns, strict=True):
        for i, value in enumerate(table.column(name).to_pylist() if column.kind == "number" else []):
            if not is_number(value):
                said = f"row {i}, column {name!r} is {one_line(repr(value))}; it must be a number"
                return Refusal(422, said, row=i, column=name)
    return Refusal(422, f"the body is not a CSV table of numbers: {words}")


def _check_names(given: Sequence[str], names: Sequence[str]) -> None:
    twice = sorted({name for name in given if name in names and given.count(name) > 1})
    if twice:
        raise Refusal(422, f"the table has the column {_listed(twice)} more than once", column=twice[0])
    refusal = _wrong_columns(given, names, "the table")
    if refusal is not None:
        raise refusal


def _listed(names: Sequence[Any], most: int = 20) -> str:
    shown = ", ".join(repr(name) if isinstance(name, str) else str(name) for name in names[:most])
    return one_line(shown if len(names) <= most else f"{shown} and {len(names) - most} more")


def is_compressed(metadata: bytes) -> bool:
    """Return whether an Arrow message has compressed buffers, which can be thousands of times larger than the body.

    The metadata is a flatbuffer: a Message whose third field is the header, here a RecordBatch (type 3) or a
    DictionaryBatch (type 2) that holds one. The fourth field of a RecordBatch is its compression.
    """

    def table_in(place: int, field: int) -> int | None:
        vtable = place - struct.unpack_from("<i", metadata, place)[0]
        size = struct.unpack_from("<H", metadata, vtable)[0]
        slot = 4 + 2 * field
        offset = struct.unpack_from("<H", metadata, vtable + slot)[0] if slot + 2 <= size else 0
        return place + offset if offset else None

    def follow(place: int) -> int:
        return place + int(struct.unpack_from("<I", metadata, place)[0])

    message = follow(0)
    kind, header = table_in(message, 1), table_in(message, 2)
    if kind is None or header is None or metadata[kind] not in (2, 3):
        return False
    batch = follow(header)
    if metadata[kind] == 2:
        inner = table_in(batch, 1)
        if inner is None:
            return False
        batch = follow(inner)
    return table_in(batch, 3) is not None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    model: str  # the version of the model that made them
    values: Array
    interval: Array | None = None  # of shape (n_rows, 2) or (n_rows, 2, n_outputs)
    targets: list[str] | None = None  # the names of several outputs; without them they are numbered
    probabilities: dict[str, Array] = {}  # of each class, where the model predicts classes
    outside: list[list[str]] | None = None  # for each row, the columns with values unlike those of training

    def of_classes(self, classes: np.ndarray, probabilities: Array) -> "Reply":
        """Return the answer with the most probable class of each row, and the probabilities of all."""
        likely = classes[np.argmax(probabilities, axis=1)]
        found = {str(name): probabilities[:, k] for k, name in enumerate(classes.tolist())}
        return msgspec.structs.replace(self, values=likely, probabilities=found)

    def parts(self) -> dict[str, Array]:
        """Return the predictions, and the ends of the intervals where there are such."""
        parts = {"prediction": self.values}
        if self.interval is not None:
            parts |= {"lower": self.interval[:, 0], "upper": self.interval[:, 1]}
        return parts

    def columns(self) -> dict[str, Array]:
        """Return the columns of the answer as a table; those of several outputs have the outputs' names or numbers.

        Examples
        --------
        >>> list(Reply(model="", values=np.zeros((1, 2)), interval=np.zeros((1, 2, 2))).columns())
        ['prediction_0', 'prediction_1', 'lower_0', 'lower_1', 'upper_0', 'upper_1']
        """
        found: dict[str, Array] = {}
        for name, part in self.parts().items():
            outputs = self.targets or range(part.shape[-1])
            found |= {name: part} if part.ndim == 1 else {f"{name}_{o}": part[:, k] for k, o in enumerate(outputs)}
        found |= {f"probability_{name}": share for name, share in self.probabilities.items()}
        if self.outside is not None:
            found["outside"] = np.array(["; ".join(names) for names in self.outside], dtype=object)
        return found


def written(answer: Reply, media_type: str) -> bytes:
    """Return an answer as a body of this media type."""
    if media_type == JSON:
        body: dict[str, Any] = {"predictions": answer.values.tolist(), "model": answer.model}
        if answer.interval is not None:
            body |= {"lower": answer.interval[:, 0].tolist(), "upper": answer.interval[:, 1].tolist()}
        if answer.probabilities:
            body |= {"probabilities": {name: share.tolist() for name, share in answer.probabilities.items()}}
        if answer.outside is not None:
            body["outside"] = answer.outside
        return _encoder.encode(body)
    import pyarrow as pa

    table = pa.table(answer.columns())
    buffer = io.BytesIO()
    if media_type == CSV:
        from pyarrow import csv

        csv.write_csv(table, buffer)
    else:
        with pa.ipc.new_stream(buffer, table.schema) as writer:
            writer.write_table(table)
    return buffer.getvalue()
