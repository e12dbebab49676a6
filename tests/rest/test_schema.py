"""The OpenAPI documents against the gateway they describe: generated requests, with a key and without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, cast

import pytest
import schemathesis
from amounts import NIGHTLY, amount
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from .conftest import Rest, serve

pytestmark = [pytest.mark.promise("T7"), pytest.mark.slow, pytest.mark.timeout(amount(600, nightly=7200))]

# Requests to each operation: more than 5,000 in a night.
EXAMPLES = amount(1, nightly=20)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
# Waits for a browser; a stream that goes on.
SKIPPED = {"start_upstream_login", "watch_calls", "follow_events"}
# Of the operations without a key, which are all refused in the same place: every eighth, at night all.
STRIDE = amount(8, nightly=1)
CALLERS = ["owner", "reader", "nobody"] if NIGHTLY else ["owner", "nobody"]
# The document of tools, for its owner, is in tests/journeys/test_openapi_profiles.py.
DOCUMENTS = {"owner": ["/api"], "reader": ["/api", "/openapi/default"], "nobody": ["/api", "/openapi/default"]}


@pytest.fixture(scope="module", params=CALLERS)
def caller(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    """The owner of the gateway, a key of a role that may only read, and a client without a key."""
    with serve(tmp_path_factory.mktemp("rest-schema")) as rest:
        rest.ok("PUT", "/api/chats/default/files/a.txt", 201, content=b"x")
        if request.param != "owner":
            key = rest.ok("POST", "/api/keys", 201, json={"name": "first", "role": "reader"})
            if request.param == "reader":
                rest.headers["authorization"] = f"Bearer {key['secret']}"
        yield rest


def test_rest_answers_every_generated_request_as_documented(
    caller: Rest, rest: Rest, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    name: str = request.node.callspec.params["caller"]
    headers = {"authorization": caller.headers["authorization"]} if "authorization" in caller.headers else {}
    total = 0

    def check(case: Any) -> None:
        nonlocal total
        total += 1
        response = case.call(headers=headers, timeout=60)
        if response.status_code != 431:  # the URL is larger than any head may be, whatever it names
            case.validate_response(response, checks=CHECKS)

    options = settings(
        max_examples=EXAMPLES,
        database=None,
        derandomize=not NIGHTLY,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for document in DOCUMENTS[name]:
        schema = schemathesis.openapi.from_dict(rest.ok("GET", f"{document}/openapi.json"))
        prefix = "" if document == "/api" else document  # paths of the other document are below its server
        schema.config.update(base_url=f"{str(caller.base_url).rstrip('/')}{prefix}")
        for result in islice(schema.get_all_operations(), 0, None, STRIDE if name == "nobody" else 1):
            operation = cast(Any, result).ok()
            if operation.definition.raw["operationId"] not in SKIPPED:
                for mode in GenerationMode:
                    with suppress(Unsatisfiable):  # nothing can be wrong about a request without parameters
                        options(given(case=operation.as_strategy(generation_mode=mode))(check))()
    with capsys.disabled():
        print(f" {total} requests ", end="")
