"""What a run is, said once: every setting with its type, what it may be, its default, and a line of documentation."""

from .estimators import EstimatorSettings
from .promise import DifferentialPrivacy
from .runs import (
    ALONE,
    GRIDS,
    PRECISIONS,
    WIRE_PRECISIONS,
    WITH_SHARED,
    AllReduceSettings,
    DeKRRSettings,
    DKLASettings,
    FeatureSettings,
    GuardSettings,
    SharedSettings,
    TuningSettings,
    Wire,
    grid_of,
    grid_with_parts,
    is_auto,
    parts_of,
)
from .schema import Entry, Setting, check, entries

__all__ = [
    "ALONE",
    "GRIDS",
    "PRECISIONS",
    "WIRE_PRECISIONS",
    "WITH_SHARED",
    "AllReduceSettings",
    "DKLASettings",
    "DeKRRSettings",
    "DifferentialPrivacy",
    "Entry",
    "EstimatorSettings",
    "FeatureSettings",
    "GuardSettings",
    "Setting",
    "SharedSettings",
    "TuningSettings",
    "Wire",
    "check",
    "entries",
    "grid_of",
    "grid_with_parts",
    "is_auto",
    "parts_of",
]
