"""A site's model, made of what its training returned; by the estimators and by the nodes of a mesh alike."""

import msgspec

from .model import Header, Member, SiteModel
from .protocols.outcome import Outcome
from .scaling import Scaling


def members_of(outcome: Outcome, prediction: str) -> tuple[Member, ...]:
    """Return the models that a site's prediction adds up; `parts_of` says what each is.

    First its own agreed model, and for "neighborhood" those of its neighbours, too; then the shared part and the local
    part, where there are such.
    """
    agreed = [Member(*parts) for parts in outcome.agreed_members(prediction)]
    others = [Member(part.feature_map, part.coefficients) for part in (outcome.shared, outcome.local) if part]
    return (*agreed, *others)


def parts_of(outcome: Outcome, prediction: str) -> list[str]:
    """Return what the members are: "own", "neighbor", "shared" or "local"."""
    neighbors = len(outcome.neighbor_maps) if prediction == "neighborhood" else 0
    return ["own", *["neighbor"] * neighbors, *["shared"] * bool(outcome.shared), *["local"] * bool(outcome.local)]


def model_of(outcome: Outcome, header: Header, prediction: str) -> SiteModel:
    """Return a site's model.

    Parameters
    ----------
    outcome : Outcome
    header : Header
        What is known before the training; the rest is filled in.
    prediction : {"neighborhood", "own"}
    """
    members, scales = members_of(outcome, prediction), outcome.column_scales
    header = msgspec.structs.replace(
        header,
        n_members=len(members),
        parts=parts_of(outcome, prediction),
        column_scales=None if scales is None else scales.tolist(),
        scaled=isinstance(outcome.scaling, Scaling),
        privacy=outcome.privacy,
    )
    return SiteModel(header, members, outcome.scaling, outcome.calibration)
