"""Pages of other origins: preflight without a key, answers that they may read, and none where nothing is allowed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import plain
from tests.calls import V2_PATH, row, v2_body
from tests.fakes import RunningProxy, running_proxy
from tests.proxy.access.test_access_end_to_end import ALICE, swap

APP, OTHER = "https://app.example.com", "https://evil.example.com"
INFER: dict[str, dict[str, Any]] = {
    V2_PATH: {"json": v2_body([row(1)])},
    "/v1/models/double:predict": {"json": {"instances": [row(1)]}},
    "/predictions/double": {"json": row(1)},
}
PAGES = ["/v2/models/double", "/v2/health/ready", "/nowhere"]
ALLOWED = "access-control-allow-origin"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    keys: Path = tmp_path_factory.mktemp("keys")
    swap(keys, alice=ALICE)
    with running_proxy(process__api_keys=str(keys), proxy_cors__allowed_origins=(APP,)) as proxy:
        yield proxy


def preflight(running: RunningProxy, path: str, origin: str) -> httpx.Response:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, content-type"}
    return httpx.request("OPTIONS", running.url + path, headers={"origin": origin, **asked})


@pytest.mark.parametrize("path", [*INFER, *PAGES])
def test_a_preflight_request_needs_no_key_and_is_for_allowed_origins(running: RunningProxy, path: str) -> None:
    answer = preflight(running, path, APP)
    assert (answer.status_code, answer.headers[ALLOWED]) == (200, APP)
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "authorization" in answer.headers["access-control-allow-headers"]

    refused = preflight(running, path, OTHER)
    assert refused.status_code == 400
    assert ALLOWED not in refused.headers


@pytest.mark.parametrize("path", INFER)
@pytest.mark.parametrize("key", [ALICE, "wrong-key-0123456789"])
def test_responses_and_rejections_can_be_read_by_allowed_origins_only(
    running: RunningProxy, path: str, key: str
) -> None:
    def ask(**headers: str) -> httpx.Response:
        given = {"authorization": f"Bearer {key}", **headers}
        return plain.post(running.url + path, headers=given, **INFER[path])

    status = 200 if key == ALICE else 401
    answer = ask(origin=APP)
    assert (answer.status_code, answer.headers[ALLOWED]) == (status, APP)
    assert "x-shoal-executed" in answer.headers["access-control-expose-headers"]
    for other in (ask(origin=OTHER), ask()):
        assert other.status_code == status
        assert ALLOWED not in other.headers
        assert "origin" in other.headers["vary"].lower(), "or a cache would give one origin's answer to another"


@pytest.mark.parametrize("path", PAGES)
def test_pages_can_be_read_too(running: RunningProxy, path: str) -> None:
    answer = plain.get(running.url + path, headers={"origin": APP, "authorization": f"Bearer {ALICE}"})
    assert answer.headers[ALLOWED] == APP


@pytest.mark.parametrize(("origins", "allowed"), [((), None), (("*",), "*")])
def test_it_is_off_by_default_and_a_star_is_every_origin(origins: tuple[str, ...], allowed: str | None) -> None:
    with running_proxy(proxy_cors__allowed_origins=origins) as running:
        answer = plain.post(running.url + V2_PATH, json=v2_body([row(1)]), headers={"origin": OTHER})
        assert answer.headers.get(ALLOWED) == allowed
        assert preflight(running, V2_PATH, OTHER).headers.get(ALLOWED) == allowed
