"""Where a request ends: what one client sends is never taken for another request, whatever its head says."""

import re
import shutil
import subprocess

import orjson
import pytest

from tests.calls import V1_PATH, V2_PATH, RawConnection, row, v2_body
from tests.fakes import RunningProxy, running_proxy
from tests.proxy.test_connections import request, value_of

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
UPGRADE = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__")
ASGI_PATHS = ["/v2/health/live", "/v2/models/double", "/v2/nowhere", "/"]


def post(path: str, body: bytes, *headers: bytes, length: bytes | None = None) -> bytes:
    lines = [b"POST %s HTTP/1.1" % path.encode(), b"Host: x", *headers]
    if length != b"":
        lines.append(b"Content-Length: %b" % (b"%d" % len(body) if length is None else length))
    return b"\r\n".join([*lines, b"", body])


def statuses(client: RawConnection) -> list[int]:
    """Read every answer until the other side closes."""
    data = b""
    while more := client.socket.recv(65536):
        data += more
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", data)]


def test_a_request_that_offers_to_upgrade_gets_a_response_as_it_is(running: RunningProxy) -> None:
    with RawConnection(running.address) as client:
        for value in (1, 2, 3):  # the third could be in the header cache
            client.send(request(value, *UPGRADE))
            assert value_of(client.response()[2]) == value


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 40])
def test_an_offer_to_upgrade_may_come_in_any_pieces(running: RunningProxy, pieces: int) -> None:
    whole = request(1, *UPGRADE) + LIVE + request(2, *UPGRADE)
    step = len(whole) // pieces + 1
    with RawConnection(running.address) as client:
        for start in range(0, len(whole), step):
            client.send(whole[start : start + step])
            running.call(lambda: None)
        assert value_of(client.response()[2]) == 1
        assert client.response()[2] == b'{"live":true}'
        assert value_of(client.response()[2]) == 2


@pytest.mark.parametrize("path", [V2_PATH, V1_PATH, *ASGI_PATHS])
@pytest.mark.parametrize("chunked", [False, True])
def test_the_body_of_an_upgrade_is_no_request(running: RunningProxy, path: str, chunked: bool) -> None:
    smuggled = b"GET /v2 HTTP/1.1\r\nHost: smuggled\r\n\r\n"
    if chunked:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(smuggled), smuggled)
        asked = post(path, body, *UPGRADE, b"Transfer-Encoding: chunked", length=b"")
    else:
        asked = post(path, smuggled, *UPGRADE)
    with RawConnection(running.address) as client:
        client.send(asked, b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert len(statuses(client)) == 2


def test_the_admin_port_ignores_an_upgrade_too(running: RunningProxy) -> None:
    host, port = running.proxy.admin_socket.getsockname()[:2]
    with RawConnection((host, port)) as client:
        client.send(post("/healthz", b"GET /readyz HTTP/1.1\r\nHost: smuggled\r\n\r\n", *UPGRADE, b"X-Shoal-Admin: 1"))
        client.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert statuses(client) == [405, 200]


def test_a_websocket_is_not_opened(running: RunningProxy) -> None:
    with RawConnection(running.address) as client:
        client.send(
            b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", LIVE
        )
        assert [client.response()[0] for _ in range(2)] == [200, 200]


def test_connect_is_not_accepted(running: RunningProxy) -> None:
    with RawConnection(running.address) as client:
        client.send(b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", LIVE)
        assert statuses(client) == [501]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not here")
def test_curl_may_offer_http_2(running: RunningProxy) -> None:
    command = ["curl", "--silent", "--http2", "--max-time", "20", "--json"]
    body = orjson.dumps(v2_body([row(4)])).decode()
    done = subprocess.run(
        [*command, body, running.url + V2_PATH, running.url + V2_PATH], capture_output=True, check=True
    )
    assert [value_of(part + b"]}]}") for part in done.stdout.split(b"]}]}")[:-1]] == [4, 4]


CHUNKED = b"Transfer-Encoding: chunked"


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        pytest.param(post(V2_PATH, b"0\r\n\r\n", CHUNKED), 400, id="length and chunks"),
        pytest.param(post(V2_PATH, b"{}", b"Content-Length: 2"), 400, id="the length twice"),
        pytest.param(post(V2_PATH, b"{}", b"Content-Length: 40"), 400, id="two lengths"),
        pytest.param(post(V2_PATH, b"{}", length=b"2, 2"), 400, id="a list of lengths"),
        pytest.param(post(V2_PATH, b"{}", length=b"+2"), 400, id="a length with a sign"),
        pytest.param(post(V2_PATH, b"{}", length=b"-2"), 400, id="a negative length"),
        pytest.param(post(V2_PATH, b"{}", length=b"0x2"), 400, id="a length in hexadecimal"),
        pytest.param(post(V2_PATH, b"{}", length=b"2_0"), 400, id="a length with a grouping"),
        pytest.param(post(V2_PATH, b"{}", length=b"9" * 30), 400, id="a length of thirty digits"),
        pytest.param(post(V2_PATH, b"{}", length=b"9223372036854775808"), 413, id="a length of eight exabytes"),
        pytest.param(post("/v2", b"{}", length=b"9223372036854775808"), 413, id="and on any path"),
        pytest.param(post(V2_PATH, b"{}", b"A: b\n"), 400, id="a bare LF"),
        pytest.param(post(V2_PATH, b"{}", b"A: b\rC: d"), 400, id="a bare CR"),
        pytest.param(post(V2_PATH, b"{}", b"A: b\r\n c"), 400, id="a folded line"),
        pytest.param(post(V2_PATH, b"{}", b"Transfer-Encoding:\r\n chunked"), 400, id="a folded coding"),
        pytest.param(post(V2_PATH, b"{}", b"Content-Length : 9"), 400, id="a blank before the colon"),
        pytest.param(post(V2_PATH, b"{}", b"Transfer-Encoding: gzip, chunked", length=b""), 501, id="gzip, chunked"),
        pytest.param(post("/v2", b"{}", b"Transfer-Encoding: gzip, chunked", length=b""), 501, id="and on any path "),
        pytest.param(post(V2_PATH, b"{}", b"Transfer-Encoding: xchunked", length=b""), 501, id="no coding"),
        pytest.param(post(V2_PATH, b"{}", b"Transfer-Encoding: chunked, chunked", length=b""), 400, id="chunked twice"),
        pytest.param(post(V2_PATH, b"{}", CHUNKED, CHUNKED, length=b""), 400, id="two codings"),
        pytest.param(post(V2_PATH, b"0\r\n\r\n", CHUNKED, length=b"").replace(b"1.1", b"1.0"), 400, id="in HTTP/1.0"),
        pytest.param(post(V2_PATH, b"2\n{}\n0\n\n", CHUNKED, length=b""), 400, id="chunks with bare LF"),
        pytest.param(post(V2_PATH, b"+2\r\n{}\r\n0\r\n\r\n", CHUNKED, length=b""), 400, id="a chunk with a sign"),
        pytest.param(post(V2_PATH, b"2\r\n{}xx0\r\n\r\n", CHUNKED, length=b""), 400, id="a chunk that is longer"),
        pytest.param(post(V2_PATH, b"0\r\nContent-Length: 9\r\n\r\n", CHUNKED, length=b""), 400, id="a length behind"),
        pytest.param(request(1).replace(b"HTTP/1.1", b"HTTP/2.0"), 505, id="HTTP/2.0"),
        pytest.param(b"GET /v2\r\n\r\n", 505, id="HTTP/0.9"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, id="HTTP/2's preface"),
    ],
)  # fmt: skip
def test_a_body_without_one_certain_end_is_rejected_and_nothing_behind_it_is_processed(
    running: RunningProxy, asked: bytes, status: int
) -> None:
    with RawConnection(running.address) as client:
        client.send(asked, LIVE * 3)
        assert statuses(client) == [status]


@pytest.mark.parametrize("path", [V2_PATH, "/v2"])
def test_chunk_extensions_without_end_are_cut_off(path: str) -> None:
    with running_proxy(max_head_bytes=4096) as running, RawConnection(running.address) as client:
        client.send(post(path, b"", CHUNKED, length=b""), b"1;")
        if path != V2_PATH:
            assert client.response()[0] == 405  # which does not wait for a body
        for _ in range(50):
            client.send(b"a" * 4096)
            running.call(lambda: None)
        if path == V2_PATH:
            assert client.response()[0] == 400
        assert client.closed()


def test_one_byte_a_chunk_is_no_offence(running: RunningProxy) -> None:
    body = request(7).partition(b"\r\n\r\n")[2]
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    with RawConnection(running.address) as client:
        client.send(post(V2_PATH, chunks, CHUNKED, length=b""))
        assert value_of(client.response()[2]) == 7


def test_trailers_are_bounded_and_have_no_effect() -> None:
    with running_proxy(max_head_bytes=4096) as running:
        body = request(7).partition(b"\r\n\r\n")[2]
        chunks = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
        with RawConnection(running.address) as client:
            client.send(post(V2_PATH, chunks + b"X-Request-Id: smuggled\r\n\r\n", CHUNKED, length=b""))
            _, headers, answer = client.response()
            assert value_of(answer) == 7
            assert "x-request-id" not in headers
        with RawConnection(running.address) as client:
            client.send(post(V2_PATH, chunks, CHUNKED, length=b""), *(b"T%d: x\r\n" % number for number in range(500)))
            assert client.response()[0] == 431


@pytest.mark.parametrize(
    "target",
    [
        "http://elsewhere.example" + V2_PATH,
        "HTTP://[::1]:8080" + V2_PATH + "?trace=1",
        "/v2/models/%64ouble/infer",
        "/v2/models/double/%69nfer?a=%20",
    ],
)
def test_a_target_may_be_absolute_or_encoded(running: RunningProxy, target: str) -> None:
    with RawConnection(running.address) as client:
        for _ in range(2):
            client.send(request(5, path=target))
            assert value_of(client.response()[2]) == 5


@pytest.mark.parametrize("target", ["/v2/models/double%2Finfer", "/v2/%zz", "/v2/models/%ff/infer"])
def test_any_other_target_is_404(running: RunningProxy, target: str) -> None:
    with RawConnection(running.address) as client:
        client.send(request(5, path=target), LIVE)
        assert [client.response()[0] for _ in range(2)] == [404, 200]


def test_garbage_behind_a_request_does_not_swallow_its_response(running: RunningProxy) -> None:
    running.hold()
    for behind in (
        b"\x16\x03\x01 this is no HTTP\r\n\r\n",
        post(V2_PATH, b"{}", length=b"+2"),
        b"GET / HTTP/9\r\n\r\n",
    ):
        running.hold()
        with RawConnection(running.address) as client:
            client.send(request(1), request(2), behind, LIVE)
            running.until(lambda: len(running.runtime.seen) % 2 == 1)
            running.release()
            assert value_of(client.response()[2]) == 1
            assert value_of(client.response()[2]) == 2
            assert client.response()[0] == 400
            assert client.closed()


def test_garbage_behind_a_page_does_not_swallow_it(running: RunningProxy) -> None:
    with RawConnection(running.address) as client:
        client.send(LIVE, b"\x16\x03\x01\r\n\r\n")
        assert [client.response()[0] for _ in range(2)] == [200, 400]
        assert client.closed()


@pytest.mark.parametrize("asked", [LIVE, request(3), request(2) + LIVE + request(3)])
def test_a_client_that_closes_its_sending_side_still_gets_its_responses(running: RunningProxy, asked: bytes) -> None:
    running.hold()
    with RawConnection(running.address) as client:
        client.send(asked)
        client.socket.shutdown(1)  # SHUT_WR
        if asked is not LIVE:
            running.until(lambda: len(running.runtime.seen) == 1)
        running.release()
        seen = statuses(client)
        assert [status for status in seen if status != 100] == [200] * asked.count(b"HTTP/1.1")


def test_a_connection_that_spoke_http_1_0_before_is_served_by_what_it_speaks_now(running: RunningProxy) -> None:
    with RawConnection(running.address) as other:
        other.send(request(2))
        assert other.response()[0] == 200
    with RawConnection(running.address) as client:
        client.send(request(1, b"Connection: keep-alive", version=b"1.0"))
        assert client.response()[0] == 200
        running.hold()
        client.send(request(2))
        running.until(lambda: len(running.runtime.seen) == 3)
        client.socket.shutdown(1)
        assert client.until(b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        running.release()
        assert statuses(client) == [200]


def test_a_client_that_closes_its_sending_side_after_garbage_still_gets_its_responses(running: RunningProxy) -> None:
    running.hold()
    with RawConnection(running.address) as client:
        client.send(request(1), b"\0garbage")
        running.until(lambda: len(running.runtime.seen) == 1)
        client.socket.shutdown(1)
        assert client.until(b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        running.release()
        assert statuses(client) == [200, 400]


def test_a_client_that_closes_its_sending_side_within_a_request_gets_the_responses_before_it(
    running: RunningProxy,
) -> None:
    running.hold()
    with RawConnection(running.address) as client:
        client.send(request(1), request(2)[:-5])
        running.until(lambda: len(running.runtime.seen) == 1)
        client.socket.shutdown(1)
        running.release()
        assert [status for status in statuses(client) if status != 100] == [200]
    running.until(lambda: running.proxy.scheduler.settled)


def test_thousands_of_rejected_requests_behind_one_are_each_completed(running: RunningProxy) -> None:
    running.hold()
    with RawConnection(running.address) as client:
        client.send(request(1))
        running.until(lambda: len(running.runtime.seen) == 1)
        bad = post(V2_PATH, b"{")
        count = 4000
        client.send(bad * count)
        running.release()
        assert value_of(client.response()[2]) == 1
        assert {client.response()[0] for _ in range(count)} == {400}


def test_malformed_requests_share_one_line_of_the_log(running: RunningProxy, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(50):
        with RawConnection(running.address) as client:
            client.send(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
            assert client.response()[0] == 400
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    assert running.proxy.metrics.rejections["invalid"] == 50


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nA: ", b"GET / HTTP/1.1\r\n"])
def test_a_head_without_end_is_rejected_early(running: RunningProxy, start: bytes) -> None:
    piece = b"a: b\r\n" * 100 if start.endswith(b"\n") else b"a" * 600
    with RawConnection(running.address) as client:
        client.send(start)
        for _ in range(100):  # 60 KB
            client.send(piece)
            running.call(lambda: None)
        assert client.response()[0] == 431
        assert client.closed()


def test_many_small_headers_are_as_dear_as_a_large_one(running: RunningProxy) -> None:
    with RawConnection(running.address) as client:
        client.send(b"GET /v2 HTTP/1.1\r\n", b"a:b\r\n" * 1000, b"\r\n")
        assert client.response()[0] == 431


@pytest.mark.parametrize("start", [b"nonsense\r\n\r\n", b"GET /v2 HTTP/1.1\r\n" + b"a:b\r\n" * 1000 + b"\r\n"])
def test_what_is_rejected_for_its_head_was_not_executed(running: RunningProxy, start: bytes) -> None:
    with RawConnection(running.address) as client:
        client.send(start)
        assert client.response()[1]["x-shoal-executed"] == "no"


def test_a_torchserve_client_is_rejected_in_its_own_format(running: RunningProxy) -> None:
    with RawConnection(running.address) as client:
        client.send(b"GET /predictions/double HTTP/1.1\r\nA: ", b"a" * 40_000, b"\r\n\r\n")
        status, _, body = client.response()
        assert (status, orjson.loads(body)["code"]) == (431, 431)


@pytest.mark.parametrize("name", [b"x-request-timeout-ms", b"Inference-Header-Content-Length"])
@pytest.mark.parametrize("values", [(b"2000", b"3000"), (b"2000", b"2000")])
def test_two_values_of_a_control_header_are_rejected(
    running: RunningProxy, name: bytes, values: tuple[bytes, bytes]
) -> None:
    fields = b"".join(b"%b: %b\r\n" % (name, value) for value in values)
    with RawConnection(running.address) as client:
        client.send(request(1).replace(b"Host: x\r\n", b"Host: x\r\n" + fields))
        status, _, body = client.response()
        assert (status == 400 and b"different values" in body) == (values[0] != values[1])
