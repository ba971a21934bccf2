"""Messages, models and predictions of small fits are those of the record; see transcripts.py."""

import json
import warnings

import pytest

from transcripts import CONFIGURATIONS, RECORD, differences

KNOWN = json.loads(RECORD.read_text())
NEEDS = {"mpi": ("mpi4py", "pymetis"), "mesh": ("zenoh",)}


def test_every_configuration_is_in_the_record():
    assert list(KNOWN) == list(CONFIGURATIONS)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_messages_models_and_predictions_are_those_of_the_record(name):
    for module in NEEDS.get(name, ()):
        pytest.importorskip(module)
    said, exact = differences(name, KNOWN[name])
    assert not said, f"{name}: {'; '.join(said)}. If this is meant: python tests/transcripts.py record '{name}'"
    if not exact:
        warnings.warn(
            "only the kinds of messages and rounded predictions were compared, and no bytes: the record is of another "
            f"machine, {KNOWN[name]['machine']}",
            stacklevel=1,
        )


def changed(**parts):
    return {**KNOWN["allreduce"], **parts}


def test_the_first_message_that_differs_is_named():
    known = KNOWN["allreduce"]
    for part, text in (("shapes", "is another"), ("contents", "has other bytes")):
        other = known[part][:140] + "??" + known[part][142:-2] + "??"
        said, exact = differences("allreduce", changed(**{part: other}))
        if exact:
            assert said == [said[0]]
            assert f"message 71 of 88 {text}: in exchange" in said[0]
            assert "exchange 7 of run 0, Bounds of 78 bytes from 'station 00' to 'station 01'" in said[0]
    said, exact = differences("allreduce", changed(shapes=known["shapes"] + "??", kinds={**known["kinds"], "Sums": 1}))
    assert said[-1] == "0 messages Sums, in the record 1"
    assert said[:-1] == ["the messages end after 88, those of the record after 89"] * exact


def test_predictions_and_models_that_differ_are_named():
    known = KNOWN["allreduce"]
    moved = [known["predictions"][0] + 1.0, *known["predictions"][1:]]
    assert "predictions moved by" in differences("allreduce", changed(predictions=moved))[0][0]
    models = {**known["models"], "station 03": ""}
    said, exact = differences("allreduce", changed(models=models, predicted="", machine=known["machine"]))
    if exact:
        assert said == [
            "predictions have other bytes, but moved by no more than 0.0e+00 of their spread",
            "the models of station 03 have other bytes",
        ]
    assert differences("allreduce", changed(models=models, predicted="", machine="another")) == ([], False)
