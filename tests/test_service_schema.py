"""The service answers the requests that schemathesis makes of its OpenAPI description as the description says."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dekrr import DeKRRRegressor
from dekrr.serving.bodies import JSON
from dekrr.serving.current import CurrentModel
from dekrr.serving.service import Service

schemathesis = pytest.importorskip("schemathesis")
MODES = list(schemathesis.GenerationMode)


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"station": rng.choice(["a", "b"], 200), "wind": rng.choice(["N", "S", None], 200)})
    table["temperature"], table["wet"] = rng.normal(10, 5, 200), rng.random(200) < 0.5
    table["load"] = 0.1 * table["temperature"] + (table["wind"] == "N") + rng.normal(0, 0.1, 200)
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    DeKRRRegressor(random_state=0, local=None).fit(table, "load", sites="station").models_["a"].save(path)
    service = Service(CurrentModel(path, max_rows=1000), any_host=True, watch=0)
    return schemathesis.openapi.from_asgi("/openapi.json", service.app())


@settings(max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_the_service_keeps_to_its_description(api, data):
    operation = data.draw(st.sampled_from([found.ok() for found in api.get_all_operations()]))
    case = data.draw(operation.as_strategy(generation_mode=data.draw(st.sampled_from(MODES))))
    # That a text is a table of these columns is more than a schema can say.
    of_json = case.media_type in (JSON, None)
    case.call_and_validate(excluded_checks=[] if of_json else [schemathesis.checks.positive_data_acceptance])
