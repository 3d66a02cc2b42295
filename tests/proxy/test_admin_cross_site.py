"""Pages of other sites in a browser neither drain a replica nor read its admin port."""

import threading
from collections.abc import Iterator

import httpx
import pytest

from shoal_proxy.lifecycle.drain import ProxyPhase
from tests import plain
from tests.fakes import RunningProxy, running_proxy

READS = ("/healthz", "/readyz", "/metrics", "/v1/explain", "/v1/latency")
DRAIN = {"x-shoal-admin": "1"}


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="a form's POST, which needs no leave"),
        pytest.param({"content-type": "text/plain"}, id="a fetch without cors"),
        pytest.param({**DRAIN, "origin": "https://evil.example"}, id="another origin"),
        pytest.param({**DRAIN, "origin": "http://127.0.0.1:3000"}, id="another port, of an old browser"),
        pytest.param({**DRAIN, "origin": "null"}, id="no origin"),
        pytest.param({**DRAIN, "sec-fetch-site": "cross-site"}, id="another site"),
        pytest.param({**DRAIN, "sec-fetch-site": "same-site"}, id="another port of this host"),
        pytest.param({**DRAIN, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, id="a link"),
        pytest.param({**DRAIN, "host": "evil.example"}, id="a name that was bound again"),
    ],
)
def test_a_page_cannot_drain(running: RunningProxy, headers: dict[str, str]) -> None:
    answer = plain.post(running.admin_url + "/drain", headers=headers, timeout=20)

    assert answer.status_code == 403
    assert answer.json()["error"]
    assert running.proxy.dispatcher.phase is ProxyPhase.SERVING


def test_a_page_that_sends_a_preflight_request_gets_none(running: RunningProxy) -> None:
    headers = {
        "origin": "https://evil.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "x-shoal-admin",
        "access-control-request-private-network": "true",
    }
    for headers_ in (headers, {name: value for name, value in headers.items() if name != "origin"}):
        answer = httpx.options(running.admin_url + "/drain", headers=headers_)
        assert answer.status_code in (403, 405)
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/v1/trace", "/v1/trace?seconds=1", "/v1/trace/", "//v1/trace"])
def test_data_of_single_requests_needs_the_header(running: RunningProxy, path: str) -> None:
    answer = plain.get(running.admin_url + path, timeout=20, follow_redirects=True)
    assert answer.status_code in (403, 404)
    assert not running.proxy.dispatcher.recorder._recordings


@pytest.mark.parametrize("path", READS)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({}, 200, id="curl"),
        pytest.param({"host": "10.1.2.3:9090"}, 200, id="the kubelet, Prometheus and the operator"),
        pytest.param({"host": "[fd00::1]:9090"}, 200, id="over IPv6"),
        pytest.param({"host": "localhost:9090"}, 200, id="kubectl port-forward"),
        pytest.param({"host": "cat-proxy:9090"}, 200, id="a name of the cluster"),
        pytest.param({"host": "cat.default.svc:9090"}, 200, id="a service"),
        pytest.param({"host": "cat.default.svc.cluster.local."}, 200, id="a service in full"),
        pytest.param({"sec-fetch-site": "none"}, 200, id="typed into a browser"),
        pytest.param(
            {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
            200,
            id="a link in a runbook",
        ),
        pytest.param({"host": "evil.example"}, 403, id="a name that was bound again"),
        pytest.param({"host": "127.0.0.1.evil.example:9090"}, 403, id="a name like an address"),
        pytest.param({"host": "evil.example#.svc"}, 403, id="a name and what is none"),
        pytest.param({"host": "evil.example/.svc"}, 403, id="a name and a path"),
        pytest.param({"host": "[::1].evil.example"}, 403, id="an address and a name"),
        pytest.param({"host": "svc.evil.example"}, 403, id="a name like the cluster's"),
        pytest.param({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403, id="a picture"),
        pytest.param(
            {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
            403,
            id="a frame",
        ),
        pytest.param({"origin": "https://evil.example"}, 403, id="another origin"),
    ],
)
def test_readers_of_the_admin_port(admin: RunningProxy, path: str, headers: dict[str, str], status: int) -> None:
    answer = plain.get(admin.admin_url + path, headers=headers)
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["error"]


@pytest.fixture(scope="module")
def admin() -> Iterator[RunningProxy]:
    with running_proxy() as proxy:
        yield proxy


def test_names_can_be_given() -> None:
    with running_proxy(admin_hosts=("shoal.example",)) as running:
        read = running.admin_url + "/metrics"
        assert plain.get(read, headers={"host": "SHOAL.example:9090"}).status_code == 200
        answer = plain.get(read, headers={"host": "evil.example"})
        assert answer.status_code == 403
        assert "SHOAL_PROXY_ADMIN_HOSTS" in answer.json()["error"]
    with running_proxy(admin_hosts=("*",)) as running:
        assert plain.get(running.admin_url + "/metrics", headers={"host": "any.example"}).status_code == 200


def test_a_post_with_the_admin_header_drains() -> None:
    with running_proxy() as running:
        answers: list[httpx.Response] = []
        ask = threading.Thread(
            target=lambda: answers.append(plain.post(running.admin_url + "/drain", headers=DRAIN, timeout=20))
        )
        ask.start()
        ask.join(20)
        assert answers[0].json() == {"drained": True}
