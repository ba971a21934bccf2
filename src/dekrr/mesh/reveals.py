"""What leaves a site, in words: the kind of a frame, and what each kind of message reveals to its receiver."""

import hashlib
from typing import Any, get_args

import msgspec

from ..messages import AnyMessage

REVEALS = {
    "hello": "that this site is up, and the terms of the run",
    "Roll": "names of sites and their numbers of rows",
    "Census": "numbers of sites and rows, over branches of a tree",
    "Bounds": "the smallest and the largest value of each column, of all sites together",
    "Shortlist": "candidates for features, chosen from this site's rows",
    "Features": "the features, chosen from this site's rows",
    "Chosen": "which features of a public pool this site chose from its rows",
    "Degree": "the number of neighbours",
    "Moments": "sums over this site's rows of products of the receiver's candidates, and with the target",
    "Sums": "sums over this site's rows of products of features",
    "Coefficients": "the coefficients of this site's model, and its residual",
    "Unchanged": "the residual",
    "Total": "a sum over several sites, or over this one and those behind it",
    "Rounded": "a sum over several sites, or over this one and those behind it, rounded",
    "RawColumns": "the kinds of columns, the words in them with rounded numbers of rows, and how dates are written",
    "RowFeatures": "features of every row, from which rows can be computed; studies cannot ask for them",
    "MaskKey": "a public key of this run",
    "MaskKeys": "public keys of the receiver's neighbours",
    "Magnitudes": "upper limits of the sums to come",
    "Masked": "sums over this site's rows under masks, which cancel in the sum over the receiver's neighbourhood",
    "MaskedRound": "the coefficients of this site's model, its residual, and products with its sums under masks",
    "statements": "signed statements about studies: proposals, decisions, calls, reports",
    "nothing": "that there is no message",
}
_TAGS = {kind.__struct_config__.tag: kind.__name__ for kind in get_args(AnyMessage)}
_frames: msgspec.msgpack.Decoder[list[msgspec.Raw]] = msgspec.msgpack.Decoder(list[msgspec.Raw])


def describe(frame: bytes) -> dict[str, Any]:
    """Return the kind, the exchange, the size and the digest of a frame of a run.

    Examples
    --------
    >>> import msgspec
    >>> frame = msgspec.msgpack.encode(["data", "run", "a", [], 3, ["degree", 2]])
    >>> about = describe(frame)
    >>> about["message"], about["exchange"], about["bytes"]
    ('Degree', 3, 23)
    """
    parts = _frames.decode(frame)
    tag = msgspec.msgpack.decode(parts[0])
    about: dict[str, Any] = {"message": "hello"} if tag == "hello" else {"message": "nothing"}
    if tag == "data":
        about["exchange"] = msgspec.msgpack.decode(parts[4])
        if bytes(parts[5]) != b"\xc0":  # nil
            kind = msgspec.msgpack.decode(_frames.decode(parts[5])[0])
            about["message"] = _TAGS.get(kind, str(kind))
    return {**about, "bytes": len(frame), "digest": hashlib.sha256(frame).hexdigest()}
