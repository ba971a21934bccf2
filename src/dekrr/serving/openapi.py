"""The OpenAPI description of the service, from the columns of the model."""

from importlib.metadata import version
from typing import Any

import msgspec

from .bodies import ARROW, CSV, JSON, RequestColumn, example_rows
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
            {
                "name": column.name,
                "kind": column.kind,
                "lower": column.lower,
                "upper": column.upper,
                "clipped": column.clipped,
                "categories": column.categories,
                "may be missing": column.may_be_missing,
            }
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
    """Return the number of numbers that the model predicts for a row."""
    shape = current.model.coefficients.shape
    return int(shape[1]) if len(shape) == 2 else 1


def has_intervals(current: Version) -> bool:
    """Return whether the model can give an interval around its prediction."""
    return current.model.calibration is not None


def openapi(current: Version, *, tokens: bool) -> dict[str, Any]:
    """Return the OpenAPI description.

    Parameters
    ----------
    tokens : bool
        Whether the service asks for a token.
    """
    about = schema_of(current)
    security: dict[str, Any] = {"security": [{"token": []}]} if tokens else {}
    parts: dict[str, Any] = {"schemas": {"Row": _row(current), "Problem": _problem()}}
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
            "/predict": {"post": {**_predict(current, about), **security}},
            "/schema": {"get": {**_get("The columns of a request, and examples.", JSON), **security}},
            "/health": {"get": _get("Whether the service answers, and with which model.", JSON)},
            "/metrics": {"get": {**_get("Metrics for Prometheus.", "text/plain"), **security}},
        },
        "components": parts,
    }


def _predict(current: Version, about: dict[str, Any]) -> dict[str, Any]:
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
    rows = {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Row"}}
    body = {"type": "object", "required": ["rows"], "additionalProperties": False, "properties": {"rows": rows}}
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
                    JSON: {"schema": _predictions(current)},
                    CSV: {"schema": {"type": "string"}},
                    ARROW: {"schema": table},
                },
            },
            **{
                status: {
                    "description": text,
                    "content": {_PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
                for status, text in _REFUSALS.items()
            },
        },
    }


def _predictions(current: Version) -> dict[str, Any]:
    number = {"type": "number"}
    one: dict[str, Any] = number if outputs_of(current) == 1 else {"type": "array", "items": number}
    classes = current.model.header.classes
    if classes is not None:
        one = {"enum": classes}
    properties: dict[str, Any] = {"predictions": {"type": "array", "items": one}, "model": {"type": "string"}}
    properties["outside"] = {
        "type": "array",
        "items": {"type": "array", "items": {"type": "string"}},
        "description": "For each row, the columns whose values lie outside what the model was trained on, or are words "
        "that it does not know; there the prediction is a guess. Left out where no row has such a value.",
    }
    if classes is not None:
        shares = {str(name): {"type": "array", "items": number} for name in classes}
        properties["probabilities"] = {"type": "object", "properties": shares}
    if has_intervals(current):
        end_of_one = {"type": ["number", "null"], "description": "null: no end is known to hold this coverage."}
        ends = end_of_one if outputs_of(current) == 1 else {"type": "array", "items": end_of_one}
        properties |= {end: {"type": "array", "items": ends} for end in ("lower", "upper")}
    return {"type": "object", "required": ["predictions", "model"], "properties": properties}


def _row(current: Version) -> dict[str, Any]:
    columns: tuple[RequestColumn, ...] = current.read_rows.columns
    if not current.read_rows.named:
        size = {"minItems": len(columns), "maxItems": len(columns)}
        return {"type": "array", "items": {"type": "number"}, **size}
    return {
        "type": "object",
        "required": [column.name for column in columns],
        "properties": {column.name: column.json_schema() for column in columns},
    }


def _problem() -> dict[str, Any]:
    text = {"type": "string"}
    properties = {"title": text, "status": {"type": "integer"}, "detail": text}
    return {"type": "object", "properties": {**properties, "row": {"type": "integer"}, "column": text}}


def _get(summary: str, media_type: str) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": {"description": summary, "content": {media_type: {}}}}}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if any(c in name for c in ',"\r\n') else name
