"""Keys at a running proxy, over sockets: each protocol, its open and its guarded pages, and keys that change."""

import json
import logging
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from shoal_proxy.rpc import inference_pb2 as messages
from tests import plain
from tests.calls import V2_PATH, row, v2_body
from tests.fakes import RunningProxy, running_proxy
from tests.proxy.test_grpc import Stub, failure, request

ALICE, BOB, EDGE = "alice-key-0123456789", "bob-key-0123456789", "edge-key-0123456789"
WRONG = "wrong-key-0123456789"
INFER: dict[str, dict[str, Any]] = {
    "/v1/models/double:predict": {"json": {"instances": [row(1)]}},
    V2_PATH: {"json": v2_body([row(1)])},
    "/predictions/double": {"json": row(1)},
    "/invocations": {"json": {"instances": [row(1)]}},
    "/v1/embeddings": {"json": {"model": "double", "input": "fish"}},
    "/v1/rerank": {"json": {"model": "double", "query": "a", "documents": ["b"]}},
    "/v2/models/other/infer": {"json": v2_body([row(1)])},
    "/predictions/other": {"json": row(1)},
}
OPEN = ["/", "/ping", "/v2/health/live", "/v2/health/ready", "/v2/models/double/ready", "/v1/models/double"]
GUARDED = [
    "/v2", "/v2/models/double", "/v2/models/double/versions/1", "/models", "/models/double", "/v1/models", "/docs",
    "/openapi.json", "/v2/models/double/openapi.json", "/nowhere", "/v2/models/double/docs", "/v2/models",
]  # fmt: skip


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return a folder as a kubelet mounts a Secret."""
    mounted = tmp_path / "keys"
    mounted.mkdir()
    swap(mounted, alice=ALICE, bob=BOB, edge=EDGE)
    return mounted


def swap(mounted: Path, **keys: str) -> None:
    """Change a mounted Secret as a kubelet does: all of it at once, by a link."""
    count = len(list(mounted.glob("..at*")))
    folder = mounted / f"..at{count}"
    folder.mkdir()
    for name, key in keys.items():
        (folder / name).write_text(key)
        if not (mounted / name).is_symlink():
            (mounted / name).symlink_to(f"..data/{name}")
    (mounted / "..new").symlink_to(folder.name)
    (mounted / "..new").replace(mounted / "..data")


@pytest.fixture
def running(secret: Path) -> Iterator[RunningProxy]:
    limits = {"carol": 1.0}
    with running_proxy(
        process__api_keys=str(secret),
        access_header__name="X-Consumer",
        access_header__keys=("edge",),
        access_limits__rows_per_second=limits,
        access_limits__rows_in_flight={"bob": 2},
        proxy__docs=True,
        grpc_port=0,
    ) as proxy:
        yield proxy


@pytest.fixture
def client(running: RunningProxy) -> Iterator[httpx.Client]:
    with plain.Client(base_url=running.url, timeout=20) as caller:
        yield caller


def shown(key: str) -> dict[str, str]:
    return {"x-api-key": key}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", INFER)
@pytest.mark.parametrize("headers", [{}, shown(WRONG), bearer(WRONG), {"authorization": f"Basic {ALICE}"}])
def test_no_request_reaches_the_model_without_a_key(client: httpx.Client, path: str, headers: dict[str, str]) -> None:
    answer = client.post(path, headers=headers, **INFER[path])

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-shoal-executed"] == "no"
    assert "key" in answer.text
    assert WRONG not in answer.text


def test_the_rejection_has_the_shape_of_each_protocol(client: httpx.Client) -> None:
    texts = {path: client.post(path, **INFER[path]).json() for path in INFER}

    assert isinstance(texts["/v1/models/double:predict"]["error"], str)
    assert isinstance(texts[V2_PATH]["error"], str)
    assert texts["/predictions/double"]["code"] == 401
    assert texts["/v1/embeddings"]["error"]["type"] == "invalid_request_error"
    assert isinstance(texts["/v1/rerank"]["message"], str)


@pytest.mark.parametrize("headers", [shown(ALICE), bearer(ALICE), {"authorization": f"bearer  {ALICE}"}])
def test_a_key_opens_in_either_header_again_and_again(client: httpx.Client, headers: dict[str, str]) -> None:
    for number in range(4):  # from the second on the head is known
        answer = client.post(V2_PATH, json=v2_body([row(number)]), headers=headers)
        assert answer.json()["outputs"][0]["data"] == [2 * value for value in row(number)]
    assert client.post(V2_PATH, json=v2_body([row(1)]), headers=shown(WRONG)).status_code == 401


def test_on_one_connection_each_request_shows_its_own_key(client: httpx.Client) -> None:
    seen = [client.post(V2_PATH, json=v2_body([row(1)]), headers=shown(key)).status_code for key in (ALICE, BOB, WRONG)]
    assert seen == [200, 200, 401]


@pytest.mark.parametrize("path", OPEN)
def test_health_and_readiness_stay_open(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 200


@pytest.mark.parametrize("path", GUARDED)
def test_detailed_pages_need_the_admin_header(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 401
    assert client.get(path, headers=shown(ALICE)).status_code in (200, 404)


@pytest.mark.parametrize("path", ["/models", "/v1/models/double", "/ping", "/"])
def test_no_other_method_passes_an_open_path(client: httpx.Client, path: str) -> None:
    assert client.post(path).status_code == 401
    assert client.post(path, headers=shown(ALICE)).status_code == 405


def test_a_large_body_is_rejected_by_its_head(running: RunningProxy) -> None:
    head = f"POST {V2_PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 5000000\r\n\r\n".encode()
    with socket.create_connection(running.address, 10) as caller:
        caller.sendall(head)
        assert caller.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_grpc_reports_missing_permission(running: RunningProxy) -> None:
    stub = Stub(running)
    key = (("authorization", f"Bearer {ALICE}"),)

    assert failure(lambda: stub.infer(request(row(1)))).code() == grpc.StatusCode.UNAUTHENTICATED
    wrong = failure(lambda: stub.infer(request(row(1)), metadata=(("x-api-key", WRONG),)))
    assert (wrong.code(), WRONG in wrong.details()) == (grpc.StatusCode.UNAUTHENTICATED, False)
    nameless = failure(lambda: stub.infer(request(row(1)), metadata=(("x-api-key", EDGE),)))
    assert nameless.code() == grpc.StatusCode.PERMISSION_DENIED
    assert stub.infer(request(row(1)), metadata=key).outputs
    for method in ("ServerMetadata", "ModelMetadata"):
        asked, answered = getattr(messages, f"{method}Request")(), getattr(messages, f"{method}Response")
        refused = failure(partial(stub.ask, method, asked, answered))
        assert refused.code() == grpc.StatusCode.UNAUTHENTICATED
    assert stub.ask("ServerReady", messages.ServerReadyRequest(), messages.ServerReadyResponse).ready
    stub.channel.close()


def test_a_gateway_names_its_clients_and_no_other_client_does(client: httpx.Client, running: RunningProxy) -> None:
    def ask(key: str, **more: str) -> httpx.Response:
        return client.post(V2_PATH, json=v2_body([row(1)]), headers={**shown(key), **more})

    assert ask(EDGE).status_code == 403
    assert "x-consumer" in ask(EDGE).json()["error"]
    assert [ask(EDGE, **{"x-consumer": "carol"}).status_code for _ in range(2)] == [200, 429]
    assert ask(EDGE, **{"x-consumer": "dave"}).status_code == 200
    assert ask(ALICE, **{"x-consumer": "carol"}).status_code == 200  # alice, whatever she says

    counted = dict(running.proxy.access_control.requests) if running.proxy.access_control else {}
    assert counted == {("carol", 200): 1, ("carol", 429): 1, ("edge", 200): 1, ("alice", 200): 1}


def test_a_rate_is_rejected_with_a_retry_after(client: httpx.Client) -> None:
    headers = {**shown(EDGE), "x-consumer": "carol"}
    client.post(V2_PATH, json=v2_body([row(1)]), headers=headers)
    refused = client.post(V2_PATH, json=v2_body([row(1)] * 3), headers=headers)

    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.headers["x-shoal-executed"] == "no"


def test_rows_in_flight_are_bounded_and_released(client: httpx.Client, running: RunningProxy) -> None:
    statuses: list[int] = []

    def ask() -> None:
        with plain.Client(base_url=running.url, timeout=20) as caller:
            statuses.append(caller.post(V2_PATH, json=v2_body([row(1)]), headers=shown(BOB)).status_code)

    running.hold()
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    running.until(lambda: running.proxy.access_control is not None and running.proxy.access_control.rows["bob"] == 2)
    refused = client.post(V2_PATH, json=v2_body([row(1)]), headers=shown(BOB))
    other = threading.Thread(target=lambda: client.post(V2_PATH, json=v2_body([row(1)]), headers=shown(ALICE)))
    other.start()
    running.release()
    for thread in (*threads, other):
        thread.join()

    assert (refused.status_code, statuses) == (429, [200, 200])
    assert client.post(V2_PATH, json=v2_body([row(1)] * 2), headers=shown(BOB)).status_code == 200


def test_rows_of_a_disconnected_client_are_released_when_nothing_runs_them(
    client: httpx.Client, running: RunningProxy
) -> None:
    """Otherwise a client that cancels repeatedly could have any number run. Waiting rows are released at once."""
    access_control = running.proxy.access_control
    assert access_control is not None
    account = access_control._limits.quota("bob", 0.0, forwarded=False)
    assert account is not None
    body = json.dumps(v2_body([row(1)])).encode()
    head = f"POST {V2_PATH} HTTP/1.1\r\nhost: x\r\nx-api-key: {BOB}\r\ncontent-length: {len(body)}\r\n\r\n".encode()

    def come_and_go(rows_held: int) -> None:
        with socket.create_connection(running.address, 10) as caller:
            caller.sendall(head + body)
            running.until(lambda: account.rows == rows_held)
            running.call(running.runtime.arrived.wait)
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        running.until(lambda: not running.proxy.front_limits.members)

    running.hold()
    come_and_go(1)
    assert account.rows == 1, "it runs"
    come_and_go(2)
    assert account.rows == 1, "the second only waited"
    refused = client.post(V2_PATH, json=v2_body([row(1)] * 2), headers=shown(BOB))
    running.release()
    running.until(lambda: account.rows == 0)

    assert (refused.status_code, "has 1 rows queued" in refused.json()["error"]) == (429, True)
    assert client.post(V2_PATH, json=v2_body([row(1)] * 2), headers=shown(BOB)).status_code == 200


DOUBLED = [
    ("x-api-key", WRONG, ALICE),
    ("authorization", f"Bearer {WRONG}", f"Bearer {ALICE}"),
    ("X-Consumer", "a", "b"),
]


@pytest.mark.parametrize(("name", "first", "last"), DOUBLED)
@pytest.mark.parametrize("path", [V2_PATH, "/predictions/double", "/v1/embeddings", "/v2"])
def test_repeated_credentials_are_rejected(client: httpx.Client, path: str, name: str, first: str, last: str) -> None:
    headers = [(name, first), (name.lower(), last), *([("x-api-key", EDGE)] if name == "X-Consumer" else [])]
    answer = client.post(path, headers=headers, **INFER.get(path, {}))

    assert answer.status_code == 400
    assert f"more than one {name.lower()} header" in answer.text
    assert answer.headers["x-shoal-executed"] == "no"
    assert (answer.json().get("code") == 400) == (path == "/predictions/double")
    assert ALICE not in answer.text


@pytest.mark.parametrize(("name", "first", "last"), DOUBLED)
def test_grpc_rejects_repeated_credentials(running: RunningProxy, name: str, first: str, last: str) -> None:
    stub, name = Stub(running), name.lower()
    metadata = ((name, first), (name, last), *((("x-api-key", EDGE),) if name == "x-consumer" else ()))

    refused = failure(lambda: stub.infer(request(row(1)), metadata=metadata))
    assert refused.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert f"more than one {name} header" in refused.details()
    stub.channel.close()


def test_keys_change_under_load_without_a_lost_request(running: RunningProxy, secret: Path) -> None:
    """Old and new are valid while clients change over; then the old one is no key any more."""
    old, new = ALICE, "alice-key-new-0123456789"
    key, stop, statuses = [old], threading.Event(), list[int]()

    def call() -> None:
        with plain.Client(base_url=running.url, timeout=20) as caller:
            while not stop.is_set():
                statuses.append(caller.post(V2_PATH, json=v2_body([row(1)]), headers=bearer(key[0])).status_code)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for each in callers:
        each.start()
    access_control = running.proxy.access_control
    assert access_control is not None

    def owner(presented: str) -> str | None:
        return access_control.keys.owner(presented.encode()) if access_control.keys else None

    def until_more(count: int) -> None:
        before = len(statuses)
        running.until(lambda: len(statuses) > before + count)

    swap(secret, alice=f"{old}\n{new}\n")
    running.until(lambda: owner(new) == "alice")
    key[0] = new
    until_more(50)
    swap(secret, alice=new)
    running.until(lambda: owner(old) is None)
    until_more(50)
    stop.set()
    for each in callers:
        each.join()

    assert set(statuses) == {200}
    with plain.Client(base_url=running.url, timeout=20) as client:
        assert client.post(V2_PATH, json=v2_body([row(1)]), headers=bearer(old)).status_code == 401


def test_a_folder_without_keys_is_not_ready_and_states_the_reason(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    with running_proxy(ready=False, process__api_keys=str(tmp_path / "keys")) as running, plain.Client() as client:
        answer = client.get(f"{running.admin_url}/readyz")
        assert (answer.status_code, "no client key" in answer.json()["reason"]) == (503, True)
        assert client.post(f"{running.url}{V2_PATH}", json=v2_body([row(1)]), headers=shown(ALICE)).status_code == 401
        (tmp_path / "keys" / "alice").write_text(ALICE)
        running.until(lambda: not running.proxy.pages.reason())


def test_no_key_is_texts_anywhere(
    client: httpx.Client, running: RunningProxy, secret: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    texts = [client.post(V2_PATH, json=v2_body([row(1)]), headers=shown(key)).text for key in (ALICE, EDGE, WRONG)]
    texts += [client.post(V2_PATH, content=b"{", headers=bearer(ALICE)).text]
    swap(secret, alice=ALICE, short="tooshort-key", spaced="with a space 0123456789")
    running.until(lambda: running.proxy.access_control is not None and running.proxy.access_control.keys is not None
                  and running.proxy.access_control.keys.names == {"alice"})  # fmt: skip
    with httpx.Client(base_url=running.admin_url, trust_env=False) as admin:
        texts += [admin.get(path).text for path in ("/metrics", "/v1/explain", "/v1/load", "/v1/trace?seconds=0.1")]
    text = "".join([*texts, caplog.text])

    assert 'shoal_proxy_caller_requests_total{caller="alice",status="200"} 1.0' in text
    assert 'shoal_proxy_rejections_total{reason="unauthenticated"}' in text
    assert "short" in caplog.text  # its name
    for key in (ALICE, BOB, EDGE, WRONG, "tooshort-key", "with a space"):
        assert key not in text
