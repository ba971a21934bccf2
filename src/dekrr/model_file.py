"""Model files: what `SiteModel.save` wrote becomes a model again, of numbers or of classes."""

import math
import os
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load as tensors_of

from .class_model import SiteClassifier
from .classes import ClassCalibration
from .errors import ModelFileError
from .features import FeatureMap
from .intervals import Calibration
from .model import FORMAT, FORMAT_VERSION, Header, Member, SiteModel
from .scaling import UNSCALED, Scaling
from .types import Array

__all__ = ["load"]


def from_bytes(data: bytes) -> SiteModel:
    """Return the model that `SiteModel.to_bytes` wrote; see `load`.

    Examples
    --------
    >>> from dekrr.model import Header, Member, SiteModel
    >>> header = Header(site="a", method="DeKRRRegressor", kernel="gaussian", sigma=1.0, n_columns=2)
    >>> own = Member(FeatureMap(np.ones((2, 3)), np.zeros(3), np.ones(3)), np.ones(3))
    >>> from_bytes(SiteModel(header, (own,)).to_bytes()).header.site
    'a'
    """
    size = int.from_bytes(data[:8], "little")
    try:
        metadata = msgspec.json.decode(data[8 : 8 + size]).get("__metadata__")
        tensors = tensors_of(data)
    except (SafetensorError, msgspec.MsgspecError, AttributeError) as error:
        raise ModelFileError(f"these bytes are damaged, or not a model file: {error}") from None
    return _from_tensors("the model", _read_header("the model", metadata), tensors)


def load(path: str | os.PathLike[str]) -> SiteModel:
    """Read a model that `SiteModel.save` wrote.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    SiteModel
        The model of one site; its `predict` takes rows.

    Raises
    ------
    ModelFileError
        When the file is damaged, is not a model, or has a newer format.
    """
    if os.path.isdir(path):
        raise ModelFileError(f"{path} is a folder: give one of its model files, which end in .safetensors")
    try:
        with safe_open(path, framework="numpy") as file:
            header = _read_header(path, file.metadata())
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (FileNotFoundError, ModelFileError):
        raise
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        noise = isinstance(error, SafetensorError) and "header" in str(error)
        why = "it does not begin as one" if noise else error
        raise ModelFileError(
            f"{path} is damaged, or not a model file: {why}. Model files are written by models_[site].save(path), "
            "and by dekrr fit and dekrr node"
        ) from None
    except MemoryError:
        raise ModelFileError(f"{path} claims tensors larger than the memory") from None
    return _from_tensors(path, header, tensors)


def _read_header(path: Any, metadata: dict[str, str] | None) -> Header:
    if not metadata or FORMAT not in metadata:
        raise ModelFileError(f"{path} is a safetensors file, but not a dekrr model: it has no {FORMAT} header")
    try:
        header = msgspec.json.decode(metadata[FORMAT], type=Header)
    except msgspec.MsgspecError as error:
        raise ModelFileError(f"{path} has a header that cannot be read: {error}") from None
    if header.version > FORMAT_VERSION:
        raise ModelFileError(
            f"{path} has format version {header.version}; this dekrr reads up to {FORMAT_VERSION}: install a newer one"
        )
    return header


def _from_tensors(path: Any, header: Header, tensors: dict[str, Array]) -> SiteModel:
    try:
        members = []
        weights = tensors["weights"]
        if weights.shape != (header.n_members,):
            raise ModelFileError(f"{path}: {weights.shape} weights for {header.n_members} members")
        for i in range(header.n_members):
            frequencies = tensors[f"frequencies_{i}"]
            phases, amplitudes = tensors[f"phases_{i}"], tensors[f"amplitudes_{i}"]
            coefficients = tensors[f"coefficients_{i}"]
            outputs = tensors["coefficients_0"].shape[1:]
            size = (frequencies.shape[1],)
            fits = phases.shape == amplitudes.shape == size and coefficients.shape == size + outputs
            known = {header.n_columns}
            if header.parts[i : i + 1] == ["local"]:
                known.add(header.n_columns + math.prod(outputs))
            if frequencies.shape[0] not in known or not fits or len(outputs) > 1:
                raise ModelFileError(f"{path}: the shapes of member {i} do not fit each other")
            members.append(Member(FeatureMap(frequencies, phases, amplitudes), coefficients, float(weights[i])))
        scaling = Scaling.from_tensors(tensors) if header.scaled else UNSCALED
        n_bounds = header.n_columns + math.prod(members[0].coefficients.shape[1:])
        if any(bound.shape != (n_bounds,) for bound in scaling.tensors.values()):
            sizes = " and ".join(str(bound.size) for bound in scaling.tensors.values())
            raise ModelFileError(f"{path}: {sizes} bounds for {header.n_columns} columns and a response")
    except (KeyError, IndexError) as error:
        raise ModelFileError(f"{path} lacks the tensor {error}") from None
    if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
        raise ModelFileError(f"{path} has NaN or infinite values")
    calibration = None
    if "interval_own" in tensors:
        try:
            own = members[0]
            calibration = Calibration.of(tensors, own.feature_map.n_features, math.prod(own.coefficients.shape[1:]))
        except (KeyError, ValueError) as error:
            raise ModelFileError(f"{path}: what intervals are made of is damaged: {error}") from None
    model = SiteModel(header, tuple(members), scaling, calibration)
    if header.classes is None:
        return model
    try:
        return SiteClassifier.of(model, header.classes, ClassCalibration.of(tensors, len(header.classes)))
    except (KeyError, ValueError) as error:
        raise ModelFileError(f"{path}: what probabilities of classes are made of is damaged: {error}") from None
