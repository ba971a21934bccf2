"""A model as an ONNX graph, which any ONNX runtime evaluates without dekrr.

The graph takes `rows`, doubles of shape (n_rows, n_columns) in the order of the model's columns, and gives
`prediction`, doubles of shape (n_rows,) or (n_rows, n_outputs). Each part of a model adds its nodes by a function of
its own. A part that has no such function is refused. Before a graph is written, it is evaluated beside the model.
"""

from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..disk import replacing
from ..errors import ModelFileError
from ..model import Member, SiteModel
from ..scaling import AnyScaling
from .columns import columns_of

ROWS, PREDICTION = "rows", "prediction"
OPSET = 17  # of 2022: old runtimes read it, too
_IR_VERSION = 8
_TOLERANCE = 1e-9
_ROWS_TO_CHECK = 64
_PARTS = {"header", "members", "scaling", "calibration"}  # intervals are not in the graph, predictions are
_HEADER_WITHOUT_EFFECT = {"site", "method", "kernel", "sigma", "columns", "n_columns", "n_members", "scaled"}
_HEADER_WITHOUT_EFFECT |= {"privacy", "format", "version", "parts", "column_scales", "targets"}
_BOUNDS = {"lower", "upper", "lowest", "highest"}
_IN_WORDS = {"encoding": "columns of words, dates or missing values (encoding)"}
_IN_WORDS |= {"class_calibration": "probabilities of classes"}


def write_onnx(model: SiteModel, path: Path) -> None:
    """Write a model as an ONNX file; an existing file is replaced.

    Parameters
    ----------
    model : SiteModel
    path : Path

    Raises
    ------
    ModelFileError
        When the model has a part that cannot be exported; the text names it.
    """
    graph = onnx_graph(model)
    with replacing(path, private=False) as temporary:
        temporary.write_bytes(graph.SerializeToString())


def onnx_graph(model: SiteModel) -> Any:
    """Return a model as an `onnx.ModelProto`.

    Examples
    --------
    >>> from dekrr.features import FeatureMap
    >>> from dekrr.model import Header
    >>> member = Member(FeatureMap.unweighted(np.ones((2, 3)), np.zeros(3)), np.ones(3))
    >>> header = Header(site="a", method="", kernel="gaussian", sigma=1.0, n_columns=2)
    >>> [node.op_type for node in onnx_graph(SiteModel(header, (member,))).graph.node]
    ['MatMul', 'Add', 'Cos', 'MatMul', 'Identity']
    """
    import onnx
    from onnx import TensorProto, helper

    _refuse_unknown_parts(model)
    nodes = _Nodes()
    rows = _scaled(nodes, model.scaling, ROWS, model.header.n_columns)
    first = [member for member in model.members if member.feature_map.n_columns == model.header.n_columns]
    second = [member for member in model.members if member.feature_map.n_columns != model.header.n_columns]
    total = nodes.sum_of([_member(nodes, member, rows) for member in first])
    if second:
        column = nodes.reshaped(total, (-1, model.n_outputs))
        read = nodes.add("Concat", rows, column, axis=1)
        total = nodes.sum_of([total, *(_member(nodes, member, read) for member in second)])
    nodes.add("Identity", _undone(nodes, model.scaling, total, model.coefficients.shape[1:]), name=PREDICTION)
    header = model.header
    outputs = list(model.coefficients.shape[1:])
    graph = helper.make_graph(
        nodes.nodes,
        "dekrr",
        [helper.make_tensor_value_info(ROWS, TensorProto.DOUBLE, ["n_rows", header.n_columns])],
        [helper.make_tensor_value_info(PREDICTION, TensorProto.DOUBLE, ["n_rows", *outputs])],
        nodes.constants,
    )
    made = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=_IR_VERSION,
        producer_name="dekrr",
    )
    about = {"site": header.site, "method": header.method, "columns": msgspec.json.encode(header.columns).decode()}
    if header.targets is not None:
        about["targets"] = msgspec.json.encode(header.targets).decode()
    helper.set_model_props(made, about)
    onnx.checker.check_model(made, full_check=True)
    _compare(model, made)
    return made


class _Nodes:
    """The nodes and constants of a graph that is being made; every node has one output, which is named after it."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, operation: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        from onnx import helper

        name = name or f"{operation.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, list(inputs), [name], **attributes))
        return name

    def sum_of(self, names: Sequence[str]) -> str:
        """Add a sum, and return the name of its output."""
        return names[0] if len(names) == 1 else self.add("Sum", *names)

    def reshaped(self, name: str, shape: Sequence[int]) -> str:
        """Add a change of shape, and return the name of its output."""
        return self.add("Reshape", name, self.constant(np.array(shape), dtype=np.int64))

    def constant(self, values: np.ndarray, dtype: Any = np.float64) -> str:
        """Add a constant, and return its name."""
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values, dtype=dtype), name))
        return name


def _member(nodes: _Nodes, member: Member, rows: str) -> str:
    """Add weight * coefficients'(amplitudes * cos(frequencies'x + phases)), and return the name of its output."""
    feature_map = member.feature_map
    angles = nodes.add("MatMul", rows, nodes.constant(feature_map.frequencies))
    waves = nodes.add("Cos", nodes.add("Add", angles, nodes.constant(feature_map.phases)))
    amplitudes = feature_map.amplitudes.reshape(-1, *[1] * (member.coefficients.ndim - 1))
    return nodes.add("MatMul", waves, nodes.constant(member.weight * amplitudes * member.coefficients))


def _scaled(nodes: _Nodes, scaling: AnyScaling, rows: str, n_columns: int) -> str:
    """Add the scaling of rows: columns are moved to their limits, where there are such, and then scaled."""
    bounds = {name: np.asarray(values)[:n_columns] for name, values in scaling.tensors.items()}
    if not bounds:
        return rows
    if "lowest" in bounds:
        above = nodes.add("Max", rows, nodes.constant(bounds["lowest"]))
        rows = nodes.add("Min", above, nodes.constant(bounds["highest"]))
    spans = bounds["upper"] - bounds["lower"]
    centred = nodes.add("Sub", rows, nodes.constant(bounds["lower"]))
    return nodes.add("Div", centred, nodes.constant(np.where(spans > 0, spans, 1.0)))


def _undone(nodes: _Nodes, scaling: AnyScaling, prediction: str, outputs: Sequence[int]) -> str:
    """Add the way back from scaled responses to their own units."""
    if not scaling.tensors:
        return prediction
    offset = scaling.undo(np.zeros((1, *outputs)))[0]
    slope = scaling.undo(np.ones((1, *outputs)))[0] - offset
    return nodes.add("Add", nodes.add("Mul", prediction, nodes.constant(slope)), nodes.constant(offset))


def _refuse_unknown_parts(model: SiteModel) -> None:
    """Raise `ModelFileError` if anything in the model could change a prediction and is not in the graph."""
    given = [(field.name, getattr(model, field.name), field.default) for field in fields(model)]
    header = model.header
    given += [(field.name, getattr(header, field.name), field.default) for field in msgspec.structs.fields(header)]
    known = _PARTS | _HEADER_WITHOUT_EFFECT
    unknown = [name for name, value, default in given if name not in known and not _is_nothing(value, default)]
    unknown += [f"a scaling by {name}" for name in model.scaling.tensors if name not in _BOUNDS]
    if unknown:
        named = ", ".join(_IN_WORDS.get(name, name) for name in unknown)
        raise ModelFileError(f"the model has {named}, which cannot be exported to ONNX; serve it instead")


def _is_nothing(value: Any, default: Any) -> bool:
    if value is None or (default is not MISSING and value is default):
        return True
    return isinstance(value, list | tuple | dict | str) and not value


def _compare(model: SiteModel, made: Any) -> None:
    """Raise `ModelFileError` unless the graph, as onnx itself evaluates it, predicts what the model predicts."""
    from onnx.reference import ReferenceEvaluator

    columns = columns_of(model)
    lower = np.array([0.0 if column.lower is None else column.lower for column in columns])
    upper = np.array([1.0 if column.upper is None else column.upper for column in columns])
    places = np.random.default_rng(0).uniform(size=(_ROWS_TO_CHECK, len(columns)))
    places[::2] = 5 * places[::2] - 2  # every other row may lie outside the bounds
    rows = lower + (upper - lower) * places
    (found,) = ReferenceEvaluator(made).run(None, {ROWS: rows})
    wanted = model.predict(rows)
    if np.shape(found) != wanted.shape or not np.allclose(found, wanted, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise ModelFileError("the ONNX graph does not predict what the model predicts; it was not written")
