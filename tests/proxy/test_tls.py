"""Proxies with TLS over real sockets: client certificates, the server certificate, and their changes."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from cryptography import x509

from shoal_proxy.certificate import Certificate, CertificateError
from shoal_proxy.http.handshakes import MAX_SHAKING, Handshake, handshake_to_abort
from shoal_proxy.rpc import inference_pb2 as messages
from shoal_proxy.settings import Settings
from shoal_schema.interfaces.protocols import GRPC_SERVICE
from shoal_schema.process.environment import SettingsError
from tests import plain
from tests.calls import V2_PATH, answer_to, row, v2_body
from tests.certificates import CLIENT, SERVER, Authority, Mounted
from tests.fakes import RunningProxy, running_proxy
from tests.proxy.test_forwarding import believe

TRUST = Authority()
STRANGER = Authority("a stranger")


def files(mounted: Mounted, client_ca: Path | None = None) -> dict[str, Any]:
    """Return the settings that name a folder's files."""
    given = {"tls_certificate": str(mounted.certificate), "tls_key": str(mounted.key)}
    return {**given, "tls_client_ca": str(client_ca)} if client_ca else given


@pytest.fixture
def mounted(tmp_path: Path) -> Mounted:
    return Mounted(tmp_path / "secret", TRUST.issue("cat.default.svc"))


@pytest.fixture
def secure(mounted: Mounted) -> Iterator[RunningProxy]:
    """Run a proxy that speaks TLS."""
    with running_proxy(**files(mounted)) as running:
        yield running


def url(running: RunningProxy) -> str:
    return running.url.replace("http://", "https://")


def caller(running: RunningProxy, context: ssl.SSLContext | None = None) -> httpx.Client:
    return httpx.Client(base_url=url(running), verify=context or TRUST.trusted(), timeout=20)


def shown(running: RunningProxy) -> x509.Certificate:
    """Return the certificate that a new handshake shows."""
    with (
        socket.create_connection(running.address, timeout=20) as plainly,
        TRUST.trusted().wrap_socket(plainly, server_hostname="127.0.0.1") as secured,
    ):
        given = secured.getpeercert(binary_form=True)
    assert given is not None
    return x509.load_der_x509_certificate(given)


def look(running: RunningProxy) -> None:
    """Have the files looked at now."""
    assert running.proxy.certificate is not None
    running.call(running.proxy.certificate.reload)


def test_clients_get_responses_over_tls(secure: RunningProxy) -> None:
    with caller(secure) as client:
        for value in range(3):  # one connection
            assert answer_to(client.post(V2_PATH, json=v2_body([row(value)]))) == [2 * each for each in row(value)]
        assert client.get("/v2/health/ready").status_code == 200
        assert client.post(V2_PATH, content=b"{").status_code == 400
        assert client.get("/nowhere").status_code == 404


def test_large_bodies_and_responses_pass_whole(secure: RunningProxy) -> None:
    rows = np.arange(40_000, dtype="<f4").reshape(10_000, 4)
    with caller(secure) as client:
        for _ in range(2):
            answer = client.post(V2_PATH, json=v2_body(rows.tolist()))
            assert answer.status_code == 413 or answer_to(answer) == (2 * rows).ravel().tolist()
        assert answer_to(client.post(V2_PATH, json=v2_body(rows[:400].tolist()))) == (2 * rows[:400]).ravel().tolist()


def test_a_client_with_another_authority_rejects_the_certificate(secure: RunningProxy) -> None:
    with caller(secure, STRANGER.trusted()) as client, pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY"):
        client.get("/v2/health/live")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_tls_before_1_2_is_rejected(secure: RunningProxy) -> None:
    old = TRUST.trusted()
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with caller(secure, old) as client, pytest.raises(httpx.ConnectError):
        client.get("/v2/health/live")


def test_plain_http_gets_an_error_in_plain_http(secure: RunningProxy) -> None:
    answer = plain.post(secure.url + V2_PATH, json=v2_body([row(1)]), timeout=20)
    assert answer.status_code == 400
    assert "https://" in answer.json()["error"]
    assert plain.get(secure.admin_url + "/readyz", timeout=20).status_code == 200  # the admin port is plain


class Load:
    """Clients that call as long as the test lasts, each time anew or on one connection."""

    def __init__(self, running: RunningProxy) -> None:
        self._running = running
        self._stop = threading.Event()
        self._served = threading.Semaphore(0)
        self.failed: list[Exception] = []

    def _call(self, *, anew: bool) -> None:
        try:
            while not self._stop.is_set():
                with caller(self._running) as client:
                    for _ in range(1 if anew else 20):
                        answer_to(client.post(V2_PATH, json=v2_body([row(1)])))
                        self._served.release()
        except Exception as error:
            self.failed.append(error)
            raise

    def served(self, count: int) -> None:
        """Wait for so many answers more."""
        for _ in range(count):
            assert self._served.acquire(timeout=20), self.failed

    @contextmanager
    def has_forwarded(self) -> Iterator[None]:
        """Call, beside the test."""
        threads = [threading.Thread(target=self._call, kwargs={"anew": anew}) for anew in (True, True, False)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(20)


def test_a_new_certificate_is_shown_without_a_failed_request(secure: RunningProxy, mounted: Mounted) -> None:
    load = Load(secure)
    with load.has_forwarded():
        for _ in range(5):
            renewed = TRUST.issue("cat.default.svc")
            mounted.put(renewed)
            look(secure)
            load.served(6)
            assert shown(secure).serial_number == renewed.x509.serial_number
    assert not load.failed


def test_the_files_are_looked_at_by_themselves(secure: RunningProxy, mounted: Mounted) -> None:
    renewed = TRUST.issue("cat.default.svc")
    mounted.put(renewed)
    secure.until(lambda: secure.proxy.certificate is not None and secure.proxy.certificate.pem.key == renewed.key)


def test_a_connection_outlives_the_certificate_that_it_was_opened_with(secure: RunningProxy, mounted: Mounted) -> None:
    with caller(secure) as client:
        answer_to(client.post(V2_PATH, json=v2_body([row(1)])))
        opened = secure.proxy.front_limits.members.copy()
        mounted.put(TRUST.issue("cat.default.svc"))
        look(secure)
        answer_to(client.post(V2_PATH, json=v2_body([row(1)])))
        assert secure.proxy.front_limits.members == opened


@pytest.mark.parametrize("broken", ["another key", "half a certificate", "no certificate", "a password", "nothing"])
def test_what_no_handshake_can_be_made_with_leaves_the_old_one(
    secure: RunningProxy, mounted: Mounted, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, new = shown(secure).serial_number, TRUST.issue("cat.default.svc")
    made: dict[str, Callable[[], object]] = {
        "another key": lambda: mounted.key.write_bytes(new.key),
        "half a certificate": lambda: mounted.certificate.write_bytes(new.certificate[:200]),
        "no certificate": lambda: mounted.certificate.write_bytes(b""),
        "a password": lambda: mounted.key.write_bytes(new.locked("secret")),
        "nothing": mounted.certificate.unlink,
    }
    made[broken]()
    look(secure)
    look(secure)
    said = [record.getMessage() for record in caplog.records if "event=certificate_refused" in record.getMessage()]
    assert shown(secure).serial_number == before
    assert len(said) == 1
    assert str(mounted.certificate) in said[0]
    mounted.put(new)
    with suppress(FileExistsError):
        mounted.certificate.symlink_to("..data/tls.crt")
    look(secure)
    assert shown(secure).serial_number == new.x509.serial_number


def test_metrics_report_until_when_the_certificate_holds(secure: RunningProxy, mounted: Mounted) -> None:
    def expiry_s() -> float:
        lines = plain.get(secure.admin_url + "/metrics", timeout=20).text.splitlines()
        name = "shoal_proxy_certificate_expiry_timestamp_seconds "
        return float(next(line for line in lines if line.startswith(name)).removeprefix(name))

    renewed = TRUST.issue("cat.default.svc", days=30)
    assert expiry_s() == shown(secure).not_valid_after_utc.timestamp()
    mounted.put(renewed)
    look(secure)
    assert expiry_s() == renewed.x509.not_valid_after_utc.timestamp()


def test_one_that_has_expired_is_shown_all_the_same_and_for_clients_to_judge(tmp_path: Path) -> None:
    issued = TRUST.issue(days=-1)
    certificate = Certificate(*map(str, issued.written(tmp_path)))
    assert certificate.expires_s == issued.x509.not_valid_after_utc.timestamp()


def test_without_a_certificate_there_is_no_expiry_metric() -> None:
    with running_proxy() as running:
        assert "certificate" not in plain.get(running.admin_url + "/metrics", timeout=20).text


# Clients who do not shake hands.


def test_a_handshake_may_take_as_long_as_a_head(mounted: Mounted) -> None:
    with running_proxy(**files(mounted), head_timeout_s=0.2) as running:
        for begun in (b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"):
            with socket.create_connection(running.address, timeout=20) as silent:
                silent.sendall(begun)
                with suppress(ConnectionResetError):
                    while silent.recv(100):
                        pass


def test_nonsense_ends_its_own_connection_alone(secure: RunningProxy) -> None:
    with caller(secure) as client:
        answer_to(client.post(V2_PATH, json=v2_body([row(1)])))
        for nonsense in (b"\x16\x03\x01\x00\x05hello", b"\x00" * 100, b"\x80\x2e\x01\x00\x02" + b"\x00" * 50):
            with socket.create_connection(secure.address, timeout=20) as rude, suppress(ConnectionResetError):
                rude.sendall(nonsense)
                while rude.recv(100):
                    pass
        answer_to(client.post(V2_PATH, json=v2_body([row(1)])))


def test_the_silent_do_not_keep_others_out(secure: RunningProxy) -> None:
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(secure.address, timeout=20)) for _ in range(MAX_SHAKING + 50)
        ]
        with caller(secure) as client:
            answer_to(client.post(V2_PATH, json=v2_body([row(1)])))
        for each in silent[:50]:  # the oldest gave way
            with suppress(ConnectionResetError):
                assert each.recv(1) == b""


def test_a_request_of_a_disconnected_client_leaves_the_queue(secure: RunningProxy) -> None:
    secure.hold()
    context = TRUST.trusted()
    with socket.create_connection(secure.address, timeout=20) as plainly:
        secured = context.wrap_socket(plainly, server_hostname="127.0.0.1")
        body = httpx.Request("POST", url(secure) + V2_PATH, json=v2_body([row(1)])).content
        head = b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % (V2_PATH.encode(), len(body))
        secured.sendall(head + body)
        secure.until(lambda: secure.runtime.running == 1)
        secured.sendall(head + body)
        secured.close()
    secure.until(lambda: not secure.proxy.front_limits.members)
    secure.release()


def test_a_drain_does_not_wait_for_idle_connections(mounted: Mounted) -> None:
    with ExitStack() as stack:
        running = stack.enter_context(running_proxy(**files(mounted), drain_delay_seconds=0.0))
        client = stack.enter_context(caller(running))
        answer_to(client.post(V2_PATH, json=v2_body([row(1)])))
        begun_s = time.monotonic()
        answer = plain.post(running.admin_url + "/drain", headers={"x-shoal-admin": "1"}, timeout=20)
        assert answer.json() == {"drained": True}
        assert time.monotonic() - begun_s < 4


# Mutual TLS.


@pytest.fixture
def mutual(mounted: Mounted, tmp_path: Path) -> Iterator[RunningProxy]:
    """Run a proxy whose clients need a certificate."""
    with running_proxy(**files(mounted, TRUST.written(tmp_path / "ca"))) as running:
        yield running


def test_with_an_authority_for_clients_they_need_a_certificate_of_it(mutual: RunningProxy, tmp_path: Path) -> None:
    own = TRUST.issue("a caller", usages=(CLIENT,)).written(tmp_path / "own")
    foreign = STRANGER.issue("a caller", usages=(CLIENT,)).written(tmp_path / "foreign")
    with caller(mutual, TRUST.trusted(own)) as client:
        answer_to(client.post(V2_PATH, json=v2_body([row(1)])))
    for context in (TRUST.trusted(), TRUST.trusted(foreign)):
        with caller(mutual, context) as client, pytest.raises(httpx.TransportError):
            client.get("/v2/health/live")
    assert mutual.runtime.most_running == 1


def test_the_certificate_authority_of_clients_may_change(mutual: RunningProxy, tmp_path: Path) -> None:
    foreign = STRANGER.issue("a caller", usages=(CLIENT,)).written(tmp_path / "foreign")
    STRANGER.written(tmp_path / "ca")
    look(mutual)
    with caller(mutual, TRUST.trusted(foreign)) as client:
        answer_to(client.post(V2_PATH, json=v2_body([row(1)])))


# What is wrong from the start.


@pytest.mark.parametrize("given", [["CERTIFICATE"], ["KEY"], ["CLIENT_CA"], ["CERTIFICATE", "CLIENT_CA"]])
def test_files_that_belong_together_are_requested_together(given: list[str]) -> None:
    with pytest.raises(SettingsError, match="SHOAL_PROXY_TLS_KEY"):
        Settings.from_env({f"SHOAL_PROXY_TLS_{name}": "/a/file" for name in given})


def test_a_proxy_without_a_good_certificate_does_not_start(tmp_path: Path) -> None:
    certificate, key = TRUST.issue().written(tmp_path)
    TRUST.issue().written(tmp_path / "other")
    for files_, named in (
        ((str(certificate), "/nowhere/tls.key"), "/nowhere/tls.key: No such file"),
        ((str(certificate), str(tmp_path / "other" / "tls.key")), "KEY_VALUES_MISMATCH"),
        ((str(key), str(key)), str(key)),
        ((str(certificate), str(key), str(key)), str(key)),
    ):
        with pytest.raises(CertificateError, match=named):
            Certificate(*files_)


# gRPC, and peers.


def reflected(running: RunningProxy, **own: bytes) -> messages.ModelInferResponse:
    """Ask by gRPC."""
    assert running.proxy.grpc is not None
    credentials = grpc.ssl_channel_credentials(TRUST.certificate, **own)
    with grpc.secure_channel(str(running.proxy.grpc.address), credentials) as channel:
        call = channel.unary_unary(
            f"/{GRPC_SERVICE}/ModelInfer",
            request_serializer=messages.ModelInferRequest.SerializeToString,
            response_deserializer=messages.ModelInferResponse.FromString,
        )
        request = messages.ModelInferRequest(model_name="double")
        request.inputs.add(name="x", datatype="FP32", shape=[1, 4]).contents.fp32_contents.extend(row(1))
        answer: messages.ModelInferResponse = call(request, timeout=20)
        return answer


def shown_by_grpc(running: RunningProxy) -> int:
    assert running.proxy.grpc is not None
    address = running.proxy.grpc.address
    pem = ssl.get_server_certificate((address.host, address.port))
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


def test_grpc_speaks_tls_too_and_shows_the_newest_certificate(mounted: Mounted) -> None:
    with running_proxy(**files(mounted), grpc_port=0) as running:
        assert reflected(running).outputs[0].name == "y"
        renewed = TRUST.issue("cat.default.svc")
        mounted.put(renewed)
        look(running)
        assert shown_by_grpc(running) == renewed.x509.serial_number
        assert reflected(running).outputs[0].name == "y"


def test_clients_of_grpc_need_a_certificate_too(mounted: Mounted, tmp_path: Path) -> None:
    own = TRUST.issue("a caller", usages=(CLIENT,))
    with running_proxy(**files(mounted, TRUST.written(tmp_path / "ca")), grpc_port=0) as running:
        assert reflected(running, private_key=own.key, certificate_chain=own.certificate).outputs[0].name == "y"
        with pytest.raises(grpc.RpcError):
            reflected(running)


@contextmanager
def two(mine: Mounted, theirs: Mounted, client_ca: Path | None = None) -> Iterator[tuple[RunningProxy, RunningProxy]]:
    """Run two replicas, the first of which knows the second."""
    with (
        running_proxy(max_batch_size=4, **files(theirs, client_ca)) as other,
        running_proxy(
            max_batch_size=4, process__peers=("{}:{}".format(*other.address),), **files(mine, client_ca)
        ) as running,
    ):
        yield running, other


def promised(running: RunningProxy) -> list[bool]:
    """Return of each peer that was asked whether it promised anything."""
    forwarder = running.proxy.forwarder
    assert forwarder is not None
    return [each.wait_s < 10 for each in forwarder.replicas.link_of if each.polled_s > 0]


@pytest.mark.parametrize("client_ca", [False, True])
def test_peers_know_one_another_by_their_certificate(mounted: Mounted, tmp_path: Path, *, client_ca: bool) -> None:
    # Of no pod's address, as a Service's is; and with mutual TLS it must be good for a client too.
    issued = TRUST.issue("cat.default.svc", usages=(SERVER, CLIENT), loopback=False)
    mounted.put(issued)
    ca = TRUST.written(tmp_path / "ca") if client_ca else None
    with two(mounted, mounted, ca) as (running, _):
        running.until(lambda: promised(running) == [True])


def test_a_client_with_another_certificate_is_no_peer(mounted: Mounted, tmp_path: Path) -> None:
    other = Mounted(tmp_path / "other", TRUST.issue("cat.default.svc"))
    with two(mounted, other) as (running, _):
        running.until(lambda: promised(running) == [False])


def test_peers_know_one_another_while_one_has_the_new_certificate_and_the_other_not_yet(
    mounted: Mounted, tmp_path: Path
) -> None:
    issued = TRUST.issue("cat.default.svc")
    mounted.put(issued)
    other = Mounted(tmp_path / "other", issued)
    with two(mounted, other) as (running, _):
        mounted.put(TRUST.issue("cat.default.svc"))
        look(running)
        running.until(lambda: promised(running) == [True])


def test_a_request_that_would_be_late_is_served_by_a_peer_over_tls(mounted: Mounted) -> None:
    with two(mounted, mounted) as (running, other):
        running.until(lambda: promised(running) == [True])
        believe(running, 1.0)
        running.hold()
        with caller(running) as first, caller(running) as second, ThreadPoolExecutor() as pool:
            held = pool.submit(first.post, V2_PATH, json=v2_body([row(1)]))
            running.until(lambda: running.runtime.running == 1)
            in_time = {"x-request-timeout-ms": "800"}
            assert answer_to(second.post(V2_PATH, json=v2_body([row(2)]), headers=in_time))
            running.release()
            assert answer_to(held.result())
        assert len(other.runtime.seen) == 1
        assert running.proxy.metrics.forwarded["answered"] == 1


def test_of_the_address_from_which_most_come_a_silent_one_gives_way() -> None:
    flood = {f"flood-{number}": Handshake("10.0.0.66", started=number != 3) for number in range(5)}
    distant = {"distant": Handshake("10.0.0.1", started=True), "silent": Handshake("10.0.0.2")}

    assert handshake_to_abort({**distant, **flood}) == "flood-3"
    del flood["flood-3"]
    assert handshake_to_abort({**distant, **flood}) == "flood-0"
