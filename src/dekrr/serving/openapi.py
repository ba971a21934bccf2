"""The OpenAPI description of the service, from the columns of the model."""

from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated, Any

import msgspec

from .bodies import ARROW, CSV, JSON, Problem, body_type, example_rows
from .current import Version

_PROBLEM = "application/problem+json"
_REFUSALS = {
    "400": "The body is not JSON.",
    "401": "The token is missing or unknown.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large, or has too many rows.",
    "415": "The media type is not offered.",
    "422": "A column is missing or of the wrong type; the text names it and its row.",
    "429": "The caller asks too often.",
}


def schema_of(current: Version) -> dict[str, Any]:
    """Return what a request must contain: the columns, and an example in JSON and in CSV."""
    columns, header = current.read_rows.columns, current.model.header
    named = current.read_rows.named
    values = [_quoted(msgspec.json.encode(column.example).decode().strip('"')) for column in columns]
    lines = [",".join(_quoted(column.name) for column in columns)] if named else []
    return {
        "site": header.site,
        "method": header.method,
        "model": current.name,
        "columns": [
            {name.replace("_", " "): value for name, value in asdict(column).items() if name != "example"}
            for column in columns
        ],
        "named": named,
        "outputs": outputs_of(current),
        "intervals": has_intervals(current),
        "targets": header.targets,
        "classes": header.classes,
        "example": {
            JSON: {"rows": example_rows(columns, named=named)},
            CSV: "\n".join([*lines, ",".join(values), ""]),
        },
    }


def outputs_of(current: Version) -> int:
    shape = current.model.coefficients.shape
    return int(shape[1]) if len(shape) == 2 else 1


def has_intervals(current: Version) -> bool:
    return current.model.calibration is not None


def openapi(current: Version, *, tokens: bool) -> dict[str, Any]:
    about = schema_of(current)
    security: dict[str, Any] = {"security": [{"token": []}]} if tokens else {}
    body = body_type(current.read_rows.columns, named=current.read_rows.named, described=True)
    types = (body, _answer_type(current), Problem)
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    parts: dict[str, Any] = {"schemas": components}
    if tokens:
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"Predictions of {about['site']}",
            "version": about["model"],
            "description": f"A {about['method']} model, served by dekrr {version('dekrr')}.",
        },
        "paths": {
            "/predict": {"post": {**_predict(about, *schemas), **security}},
            "/schema": {"get": {**_get("The columns of a request, and examples.", JSON), **security}},
            "/health": {"get": _get("Whether the service answers, and with which model.", JSON)},
            "/metrics": {"get": {**_get("Metrics for Prometheus.", "text/plain"), **security}},
        },
        "components": parts,
    }


def _predict(about: dict[str, Any], body: Any, answer: Any, refused: Any) -> dict[str, Any]:
    example = about["example"]
    parameters = []
    if about["intervals"]:
        parameters.append(
            {
                "name": "coverage",
                "in": "query",
                "description": "Also give an interval that covers this share of responses.",
                "schema": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            }
        )
    table = {"type": "string", "format": "binary"}
    return {
        "summary": "Predict the response of one or many rows.",
        "parameters": parameters,
        "requestBody": {
            "required": True,
            "content": {
                JSON: {"schema": body, "example": example[JSON]},
                CSV: {"schema": {"type": "string"}, "example": example[CSV]},
                ARROW: {"schema": table},
            },
        },
        "responses": {
            "200": {
                "description": "One prediction for each row, in the order of the rows; in the format that Accept "
                "names, or else in that of the request.",
                "content": {
                    JSON: {"schema": answer},
                    CSV: {"schema": {"type": "string"}},
                    ARROW: {"schema": table},
                },
            },
            **{
                status: {"description": text, "content": {_PROBLEM: {"schema": refused}}}
                for status, text in _REFUSALS.items()
            },
        },
    }


def _answer_type(current: Version) -> Any:
    """Return the type of an answer in JSON; `bodies.written` writes it."""
    outside = Annotated[
        list[list[str]] | msgspec.UnsetType,
        msgspec.Meta(
            description="For each row, the columns whose values lie outside what the model was trained on, or are "
            "words that it does not know; there the prediction is a guess. Left out where no row has such a value."
        ),
    ]
    classes, several = current.model.header.classes, outputs_of(current) > 1
    one: Any = list[float] if several else float
    if classes is not None:
        one = Annotated[Any, msgspec.Meta(extra_json_schema={"enum": classes})]
    fields: list[Any] = [("predictions", list[one]), ("model", str), ("outside", outside, msgspec.UNSET)]
    if classes is not None:
        fields.append(("probabilities", dict[str, list[float]]))
    if has_intervals(current):
        end = Annotated[float | None, msgspec.Meta(description="null: no end is known to hold this coverage.")]
        ends = list[list[end]] if several else list[end]
        fields += [(name, ends | msgspec.UnsetType, msgspec.UNSET) for name in ("lower", "upper")]
    return msgspec.defstruct("Answer", fields, kw_only=True)


def _get(summary: str, media_type: str) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": {"description": summary, "content": {media_type: {}}}}}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if any(c in name for c in ',"\r\n') else name
