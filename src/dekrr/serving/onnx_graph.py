"""A model as an ONNX graph, which any ONNX runtime evaluates without dekrr.

The graph takes `rows`, doubles of shape (n_rows, n_columns) in the order of the model's columns; of a table with words,
dates or missing values it takes one input for each column. It gives `prediction`,
doubles of shape (n_rows,) or (n_rows, n_outputs). Of classes it gives the most probable one as `prediction`, and
`probabilities`, doubles of shape (n_rows, n_classes). Each part of a model adds its nodes by a function of its own. A
part that has no such function is refused. Before a graph is written, it is evaluated beside the model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..classes import LEAST_PROBABILITY
from ..disk import replacing
from ..errors import ModelFileError
from ..model import Member, SiteClassifier, SiteModel
from ..parts.local import Home, TreesPart, WavesPart
from ..parts.trees import TreeEnsemble
from ..scaling import AnyScaling, Response
from ..tables.columns import Column, Columns
from .bodies import columns_of

ML = "ai.onnx.ml"
_SINCE = {"LabelEncoder": 2, "TreeEnsemble": 5}  # the first version with what is needed of an operation


class Nodes:
    """The nodes and constants of a graph; every node has one output, named after it, unlike the graph's inputs."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.ml_opset = 0  # of the domain ai.onnx.ml; 0 where no node is of it
        self._taken = set(taken)

    def add(self, operation: str, *inputs: Any, name: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its output; an input is the name of one, or a constant."""
        from onnx import helper

        if attributes.get("domain") == ML:
            self.ml_opset = max(self.ml_opset, _SINCE[operation])
        name = name or self._free(f"{operation.lower()}_{len(self.nodes)}")
        given = [one if isinstance(one, str) else self.constant(one) for one in inputs]
        self.nodes.append(helper.make_node(operation, given, [name], **attributes))
        return name

    def sum_of(self, names: Sequence[str]) -> str:
        return names[0] if len(names) == 1 else self.add("Sum", *names)

    def reshaped(self, name: str, shape: Sequence[int]) -> str:
        return self.add("Reshape", name, self.constant(np.array(shape), dtype=np.int64))

    def apart(self, name: str) -> str:
        """Add a node that changes nothing, between a matrix product and a factor that is one number.

        onnxruntime makes one operation of both, and reads the factor in single precision. It would leave out Identity.
        """
        return self.add("Max", name, np.finfo(np.float64).min)

    def as_double(self, name: str) -> str:
        from onnx import TensorProto

        return self.add("Cast", name, to=TensorProto.DOUBLE)

    def as_whole(self, name: str) -> str:
        from onnx import TensorProto

        return self.add("Cast", name, to=TensorProto.INT64)

    def constant(self, values: Any, dtype: Any = None) -> str:
        """Add a constant, and return its name; whole numbers are int64, others doubles, unless a type is given."""
        from onnx import numpy_helper

        name = self._free(f"constant_{len(self.constants)}")
        values = np.asarray(values, dtype=dtype or (np.int64 if isinstance(values, int) else np.float64))
        self.constants.append(
            numpy_helper.from_array(values if not values.ndim else np.ascontiguousarray(values), name)
        )
        return name

    def _free(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        return name


_DAY = 86_400.0  # seconds
_YEAR = 365.2425  # days
_UNKNOWN, _MISSING = -1, -2  # places of words that are no category


def inputs_of(columns: Columns) -> list[Any]:
    from onnx import TensorProto, helper

    kinds = {"category": TensorProto.STRING}
    return [
        helper.make_tensor_value_info(column.name, kinds.get(column.kind, TensorProto.DOUBLE), ["n_rows"])
        for column in columns.used
    ]


def feeds(columns: Columns, table: Any) -> dict[str, np.ndarray]:
    """Return the inputs of a graph for the rows of a table, by the names of the columns of `model.header.encoding`.

    Examples
    --------
    >>> import pandas as pd
    >>> columns = Columns((Column(name="wind", kind="category"), Column(name="when", kind="datetime")))
    >>> feeds(columns, pd.DataFrame({"wind": ["N", None], "when": ["1970-01-01T00:01", None]}))
    {'wind': array(['N', ''], dtype=object), 'when': array([60., nan])}
    """
    raw = columns.read(table, "the rows")
    found = {column.name: column.values(raw[column.name], "the rows") for column in columns.used}
    for column in columns.used:
        values = found[column.name]
        if column.kind == "category":
            found[column.name] = np.array([word or "" for word in values], dtype=object)
        elif column.kind == "datetime":
            found[column.name] = np.where(np.isnat(values), np.nan, values.astype(np.int64) / 1e6)
    return found


def add_columns(nodes: Nodes, columns: Columns) -> str:
    """Add what makes numbers of raw columns, and return the name of the rows, doubles of shape (n_rows, n_out)."""
    parts = [part for column in columns.used for part in _added(nodes, column)]
    return nodes.add("Concat", *(nodes.reshaped(part, (-1, 1)) for part in parts), axis=1)


def _added(nodes: Nodes, column: Column) -> list[str]:
    """Return the names of what a column becomes, in the order of `Column.names_out`, each of shape (n_rows,)."""
    if column.kind == "category":
        return _category(nodes, column)
    missing = nodes.add("IsNaN", column.name)
    if column.kind == "datetime":
        parts = _date(nodes, column, missing)
    else:
        parts = [nodes.add("Where", missing, column.fill, column.name)]
        if column.kind == "number":
            centred = nodes.add("Sub", parts[0], column.fill)
            parts = [nodes.add("Div", centred, column.spread)]
    return [*parts, nodes.as_double(missing)] if column.missing else parts


def _category(nodes: Nodes, column: Column) -> list[str]:
    categories = list(column.categories)
    if "" in categories:
        raise ModelFileError(
            f"column {column.name!r} has an empty word as a category, which stands for no value in ONNX; serve the "
            "model instead, or fit it with another word"
        )
    place = nodes.add(
        "LabelEncoder",
        column.name,
        domain=ML,
        keys_strings=[*categories, ""],
        values_int64s=[*range(len(categories)), _MISSING],
        default_int64=_UNKNOWN,
    )
    if len(categories) == 2:
        is_none = nodes.add("Less", place, 0)
        parts = [nodes.add("Where", is_none, 0.5, nodes.as_double(place))]
    else:
        parts = [nodes.as_double(nodes.add("Equal", place, j)) for j in range(len(categories))]
    if column.missing:
        parts.append(nodes.as_double(nodes.add("Equal", place, _MISSING)))
    return parts


def _date(nodes: Nodes, column: Column, missing: str) -> list[str]:
    """Add the parts of a date, as `dekrr.tables.columns` has them."""
    seconds = nodes.add("Where", missing, 0.0, column.name)
    days = nodes.add("Floor", nodes.add("Div", seconds, _DAY))
    whole_days = nodes.as_whole(days)
    year, start, length = _calendar(nodes, days, whole_days)
    shares = {}
    for part in column.parts:
        if part == "hour":
            of_day = nodes.add("Sub", seconds, nodes.add("Mul", days, _DAY))
            shares[part] = nodes.add("Div", of_day, _DAY)
        elif part == "weekday":  # the first of January 1970 was a Thursday
            weekday = nodes.add("Mod", nodes.add("Add", whole_days, 3), 7)
            shares[part] = nodes.add("Div", nodes.as_double(weekday), 7.0)
        elif part == "day of year":
            day = nodes.as_double(nodes.add("Sub", whole_days, start))
            shares[part] = nodes.add("Div", day, _YEAR)
    found = []
    for part in column.parts:
        if part == "year":
            begin = nodes.add("Mul", nodes.as_double(start), _DAY)
            passed = nodes.add("Sub", seconds, begin)
            share = nodes.add("Div", passed, nodes.add("Mul", nodes.as_double(length), _DAY))
            exact = nodes.add("Add", nodes.as_double(year), share)
            values = [nodes.add("Div", nodes.add("Sub", exact, column.fill), column.spread)]
        else:
            turns = nodes.add("Mul", shares[part], 2 * np.pi)
            values = [nodes.add("Sin", turns), nodes.add("Cos", turns)]
        found += [nodes.add("Where", missing, 0.0, value) for value in values]
    return found


def _calendar(nodes: Nodes, days: str, whole_days: str) -> tuple[str, str, str]:
    """Add the year of a day, the day on which it began, and its length in days; days count from 1970 on."""

    def beginning(year: str) -> str:
        before = nodes.add("Sub", year, 1)
        leap_days = [nodes.add("Div", before, every) for every in (4, 100, 400)]
        leaps = nodes.add("Add", nodes.add("Sub", leap_days[0], leap_days[1]), leap_days[2])
        years = nodes.add("Mul", nodes.add("Sub", year, 1970), 365)
        return nodes.add("Add", years, nodes.add("Sub", leaps, 477))  # leap days before 1970

    # A mean year is a guess that is wrong by at most one.
    guess = nodes.as_whole(nodes.add("Floor", nodes.add("Div", days, _YEAR)))
    guess = nodes.add("Add", guess, 1970)
    early = nodes.as_whole(nodes.add("Less", whole_days, beginning(guess)))
    late = nodes.add("Less", whole_days, beginning(nodes.add("Add", guess, 1)))
    late = nodes.as_whole(nodes.add("Not", late))
    year = nodes.add("Add", nodes.add("Sub", guess, early), late)
    start = beginning(year)
    return year, start, nodes.add("Sub", beginning(nodes.add("Add", year, 1)), start)


ROWS, PREDICTION, PROBABILITIES = "rows", "prediction", "probabilities"
OPSET = 17  # of 2022: old runtimes read it, too
_IR_VERSION = 8
_TOLERANCE = 1e-9
_ROWS_TO_CHECK = 64
_IN_THE_GRAPH = {"header", "members", "scaling", "class_calibration", "home", "response", "encoding", "classes"}
# Intervals are not in the graph, predictions are.
_WITHOUT_EFFECT = {"calibration", "site", "method", "kernel", "sigma", "columns", "n_columns", "n_members", "scaled"}
_WITHOUT_EFFECT |= {"privacy", "format", "version", "parts", "column_scales", "targets", "transform"}
_BOUNDS = {"lower", "upper", "lowest", "highest"}


def write_onnx(model: SiteModel, path: Path) -> None:
    """Write a model as an ONNX file in the place of any other; refuse a model with a part that cannot be exported."""
    graph = onnx_graph(model)
    with replacing(path, private=False) as temporary:
        temporary.write_bytes(graph.SerializeToString())


def onnx_graph(model: SiteModel) -> Any:
    """Return a model as an `onnx.ModelProto`."""
    import onnx
    from onnx import TensorProto, helper

    _refuse_unknown_parts(model)
    header, encoding = model.header, model.header.encoding
    if encoding is None:
        inputs = [helper.make_tensor_value_info(ROWS, TensorProto.DOUBLE, ["n_rows", header.n_columns])]
    else:
        inputs = inputs_of(encoding)
        taken = [column.name for column in encoding.used if column.name in (PREDICTION, PROBABILITIES)]
        if taken:
            raise ModelFileError(f"the column {taken[0]!r} has the name of an output of the ONNX graph; rename it")
    nodes = Nodes(taken=[value.name for value in inputs])
    rows = _scaled(nodes, model.scaling, ROWS if encoding is None else add_columns(nodes, encoding), header.n_columns)
    total = _member(nodes, model.joined_at_home, rows)
    if model.home is not None:
        total = _at_home(nodes, model.home, rows, total, header.n_columns)
    found = _undone(nodes, model.scaling, total, model.coefficients.shape[1:])
    found = _changed_back(nodes, model.response, found)
    if isinstance(model, SiteClassifier):
        outputs = _add_classes(nodes, model, found)
    else:
        nodes.add("Identity", found, name=PREDICTION)
        shape = ["n_rows", *model.coefficients.shape[1:]]
        outputs = [helper.make_tensor_value_info(PREDICTION, TensorProto.DOUBLE, shape)]
    made = graph_model(nodes, inputs, outputs)
    about = {"site": header.site, "method": header.method, "columns": msgspec.json.encode(header.columns).decode()}
    if header.targets is not None:
        about["targets"] = msgspec.json.encode(header.targets).decode()
    helper.set_model_props(made, about)
    onnx.checker.check_model(made, full_check=True)
    _compare(model, made)
    return made


def graph_model(nodes: Nodes, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """Return the `onnx.ModelProto` of a graph, with the versions of ONNX that its nodes need."""
    from onnx import helper

    domains = [helper.make_opsetid("", OPSET)]
    if nodes.ml_opset:
        domains.append(helper.make_opsetid(ML, nodes.ml_opset))
    return helper.make_model(
        helper.make_graph(nodes.nodes, "dekrr", inputs, outputs, nodes.constants),
        opset_imports=domains,
        ir_version=_IR_VERSION,
        producer_name="dekrr",
    )


def _member(nodes: Nodes, member: Member, rows: str) -> str:
    """Add weight * coefficients'(amplitudes * cos(frequencies'x + phases)), and return the name of its output."""
    feature_map = member.feature_map
    angles = nodes.add("MatMul", rows, feature_map.frequencies)
    waves = nodes.add("Cos", nodes.add("Add", angles, feature_map.phases))
    amplitudes = feature_map.amplitudes.reshape(-1, *[1] * (member.coefficients.ndim - 1))
    return nodes.add("MatMul", waves, member.weight * amplitudes * member.coefficients)


def _at_home(nodes: Nodes, home: Home, rows: str, others: str, n_columns: int) -> str:
    """Add what the site adds for its own rows to what the other parts predict; see `dekrr.parts.local`."""
    if np.any(home.level):
        others = nodes.add("Add", others, home.level)
    local = home.local
    if local is None:
        return others
    read = nodes.add("Concat", rows, nodes.reshaped(others, (-1, home.level.size)), axis=1)
    if isinstance(local, TreesPart):
        trees = add_trees(nodes, local.trees, read)
        plane = nodes.add("MatMul", rows, local.slopes[1:])
        plane = nodes.add("Add", plane, local.slopes[0])
        own = nodes.reshaped(nodes.sum_of([trees, plane]), (-1, *home.level.shape))
        return nodes.sum_of([nodes.add("Mul", others, local.share), own])
    if isinstance(local, WavesPart):
        given = rows if local.feature_map.n_columns == n_columns else read
        return nodes.sum_of([others, _member(nodes, Member(local.feature_map, local.coefficients), given)])
    raise ModelFileError(
        "the local part is a regressor that was given as local=, which has no nodes in ONNX: export the model without "
        'it, as in model.without_local(), or fit with local="auto"'
    )


def add_trees(nodes: Nodes, trees: TreeEnsemble, rows: str) -> str:
    """Add trees that read `rows`, and return the name of their predictions, doubles of shape (n_rows, n_outputs)."""
    from onnx import numpy_helper

    if not trees.n_trees:
        n_rows = nodes.add("Slice", nodes.add("Shape", rows), *(nodes.constant([k], np.int64) for k in (0, 1)))
        shape = nodes.add("Concat", n_rows, nodes.constant([trees.n_outputs], np.int64), axis=0)
        return nodes.add("Expand", trees.base, shape)
    split, leaf = trees.column >= 0, trees.column < 0
    # The graph numbers splits and leaves apart, and begins every tree with a split: a tree that is one leaf gets one.
    alone = leaf[trees.roots]
    place = np.where(split, np.cumsum(split), np.cumsum(leaf)) - 1
    lone = place[trees.roots[alone]]
    roots = np.where(alone, split.sum() + np.cumsum(alone) - 1, place[trees.roots])

    def side(child: np.ndarray) -> tuple[list[int], list[int]]:
        of_splits = child[split]
        return (
            np.concatenate([place[of_splits], lone]).tolist(),
            np.concatenate([leaf[of_splits], np.ones(len(lone), dtype=bool)]).astype(int).tolist(),
        )

    true_nodes, true_leaves = side(trees.left)
    false_nodes, false_leaves = side(trees.right)
    n_splits = len(true_nodes)
    outputs = np.repeat(trees.output, np.diff(trees.roots, append=trees.n_nodes))
    found = nodes.add(
        "TreeEnsemble",
        rows,
        domain=ML,
        n_targets=trees.n_outputs,
        aggregate_function=1,  # the sum
        post_transform=0,  # none
        tree_roots=roots.tolist(),
        nodes_modes=numpy_helper.from_array(np.zeros(n_splits, dtype=np.uint8)),  # to the left where x <= threshold
        nodes_featureids=np.concatenate([trees.column[split], np.zeros(len(lone), dtype=int)]).tolist(),
        nodes_splits=numpy_helper.from_array(np.concatenate([trees.threshold[split], np.zeros(len(lone))])),
        nodes_truenodeids=true_nodes,
        nodes_trueleafs=true_leaves,
        nodes_falsenodeids=false_nodes,
        nodes_falseleafs=false_leaves,
        leaf_targetids=outputs[leaf].tolist(),
        leaf_weights=numpy_helper.from_array(trees.value[leaf]),
    )
    return nodes.add("Add", found, trees.base)


def _add_classes(nodes: Nodes, model: SiteClassifier, codes: str) -> list[Any]:
    """Add the most probable class, and the probabilities of all; return the graph's outputs."""
    from onnx import TensorProto, helper

    platt = model.class_calibration.platt
    if model.coefficients.ndim == 1:  # of two classes
        column = nodes.reshaped(codes, (-1, 1))
        codes = nodes.add("Concat", nodes.add("Sub", 1.0, column), column, axis=1)
    steep = nodes.add("Mul", nodes.apart(codes), platt.slope)
    logits = nodes.add("Add", steep, platt.offsets)
    shares = nodes.add("Max", nodes.add("Softmax", logits, axis=1), LEAST_PROBABILITY)
    total = nodes.add("ReduceSum", shares, nodes.constant([1], np.int64), keepdims=1)
    nodes.add("Div", shares, total, name=PROBABILITIES)
    classes = model.classes_
    kinds = {"U": TensorProto.STRING, "i": TensorProto.INT64, "b": TensorProto.BOOL, "f": TensorProto.DOUBLE}
    known = nodes.constant(classes.astype(object) if classes.dtype.kind == "U" else classes, classes.dtype)
    place = nodes.add("ArgMax", PROBABILITIES, axis=1, keepdims=0)
    nodes.add("Gather", known, place, name=PREDICTION)
    return [
        helper.make_tensor_value_info(PREDICTION, kinds[classes.dtype.kind], ["n_rows"]),
        helper.make_tensor_value_info(PROBABILITIES, TensorProto.DOUBLE, ["n_rows", len(classes)]),
    ]


def _scaled(nodes: Nodes, scaling: AnyScaling, rows: str, n_columns: int) -> str:
    """Add the scaling of rows: columns are moved to their limits, where there are such, and then scaled."""
    bounds = {name: np.asarray(values)[:n_columns] for name, values in scaling.tensors.items()}
    if not bounds:
        return rows
    if "lowest" in bounds:
        above = nodes.add("Max", rows, bounds["lowest"])
        rows = nodes.add("Min", above, bounds["highest"])
    spans = bounds["upper"] - bounds["lower"]
    centred = nodes.add("Sub", rows, bounds["lower"])
    scaled = nodes.add("Div", centred, np.where(spans > 0, spans, 1.0))
    return nodes.apart(scaled) if n_columns == 1 else scaled


def _undone(nodes: Nodes, scaling: AnyScaling, prediction: str, outputs: Sequence[int]) -> str:
    """Add the way back from scaled responses to their own units."""
    if not scaling.tensors:
        return prediction
    offset = scaling.undo(np.zeros((1, *outputs)))[0]
    slope = scaling.undo(np.ones((1, *outputs)))[0] - offset
    apart = nodes.apart(prediction) if slope.size == 1 else prediction
    return nodes.add("Add", nodes.add("Mul", apart, slope), offset)


def _changed_back(nodes: Nodes, response: Response, found: str) -> str:
    """Add the way back from responses that were changed for training."""
    if response.is_learner:
        raise ModelFileError(
            f"the model has transform={response.transform!r}, which cannot be exported to ONNX; fit with a named one"
        )
    if response.name in ("log1p", "sqrt", "nonnegative"):
        found = nodes.add("Relu", found)
    if response.name == "log":
        return nodes.add("Exp", found)
    if response.name == "log1p":
        return nodes.add("Sub", nodes.add("Exp", found), np.ones(1))
    if response.name == "sqrt":
        return nodes.add("Mul", found, found)
    if response.name == "logit":
        return nodes.add("Sigmoid", found)
    if response.name == "share":
        return nodes.add("Min", nodes.add("Relu", found), np.ones(1))
    return found


def _refuse_unknown_parts(model: SiteModel) -> None:
    """Raise `ModelFileError` if anything in the model could change a prediction and is not in the graph."""
    given = [(field.name, getattr(model, field.name), field.default) for field in fields(model)]
    header = model.header
    given += [(field.name, getattr(header, field.name), field.default) for field in msgspec.structs.fields(header)]
    known = _IN_THE_GRAPH | _WITHOUT_EFFECT
    unknown = [name for name, value, default in given if name not in known and not _is_nothing(value, default)]
    unknown += [f"a scaling by {name}" for name in model.scaling.tensors if name not in _BOUNDS]
    if unknown:
        named = ", ".join(unknown)
        raise ModelFileError(f"the model has {named}, which cannot be exported to ONNX; serve it instead")


def _is_nothing(value: Any, default: Any) -> bool:
    if value is None or (default is not MISSING and value is default):
        return True
    return isinstance(value, list | tuple | dict | str) and not value


def _compare(model: SiteModel, made: Any) -> None:
    """Raise `ModelFileError` unless the graph, as onnx itself evaluates it, predicts what the model predicts."""
    from onnx.reference import ReferenceEvaluator

    rng = np.random.default_rng(0)
    encoding = model.header.encoding
    if encoding is None:
        table: Any = _rows_to_check(model, rng)
        given = {ROWS: table}
    else:
        table = _table_to_check(encoding, rng)
        given = feeds(encoding, table)
    if isinstance(model, SiteClassifier):
        wanted, output = model.predict_proba(table), PROBABILITIES
    else:
        wanted, output = model.predict(table), PREDICTION
    (found,) = ReferenceEvaluator(made).run([output], given)
    if np.shape(found) != wanted.shape or not np.allclose(found, wanted, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise ModelFileError("the ONNX graph does not predict what the model predicts; it was not written")


def _rows_to_check(model: SiteModel, rng: np.random.Generator) -> np.ndarray:
    columns = columns_of(model)
    lower = np.array([0.0 if column.lower is None else column.lower for column in columns])
    upper = np.array([1.0 if column.upper is None else column.upper for column in columns])
    places = rng.uniform(size=(_ROWS_TO_CHECK, len(columns)))
    places[::2] = 5 * places[::2] - 2  # every other row may lie outside the bounds
    return np.asarray(lower + (upper - lower) * places)


def _table_to_check(encoding: Columns, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return raw rows, every fifth value of which is missing."""
    table = {}
    for column in encoding.used:
        missing = rng.uniform(size=_ROWS_TO_CHECK) < 0.2
        middle, steps = column.fill, rng.normal(size=_ROWS_TO_CHECK)
        if column.kind == "category":
            words = rng.choice([*column.categories, "a word that nobody knows"], size=_ROWS_TO_CHECK).astype(object)
            words[missing] = None
            table[column.name] = words
        elif column.kind == "datetime":
            days = ((middle or 2000) - 1970 + 3 * column.spread * steps) * 365.2425
            dates = np.datetime64("1970-01-01", "us") + (days * 86_400e6).astype("timedelta64[us]")
            table[column.name] = np.where(missing, np.datetime64("NaT"), dates)
        else:
            values = middle + 2 * column.spread * steps if column.kind == "number" else 1.0 * (steps > 0)
            table[column.name] = np.where(missing, np.nan, values)
    return table
