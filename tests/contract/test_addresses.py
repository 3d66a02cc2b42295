"""What the operator renders listens, answers and is read in networks of either family, and of both."""

import asyncio
import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from msgspec import structs

from shoal_operator.manifests.containers import make_proxy
from shoal_operator.manifests.environment import ADMIN_PORT, HTTP_PORT
from shoal_operator.scaling.reading import Reading
from shoal_operator.scaling.scraper import Scraper
from shoal_operator.scaling.service_cache import Replica
from shoal_proxy.listening import bind
from shoal_schema.fields.addresses import Address
from tests.networks import own_network
from tests.operator.samples import DEFAULTS, MINIMAL, target

pytestmark = pytest.mark.integration
Command = Sequence[str]
V4, V6 = "10.99.0.5", "fd00:5a::5"
HAS_V4 = ("ip", "address", "add", f"{V4}/32", "dev", "lo")
HAS_V6 = ("ip", "-6", "address", "add", f"{V6}/128", "dev", "lo", "nodad")
NO_V4 = ("ip", "address", "del", "127.0.0.1/8", "dev", "lo")
NO_V6 = ("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
NETWORKS: dict[str, tuple[tuple[Command, ...], str]] = {
    "IPv4 only": ((HAS_V4, NO_V6), V4),
    "IPv6 only": ((HAS_V6, NO_V4), V6),
    "both, IPv4 first": ((HAS_V4, HAS_V6), V4),
    "both, IPv6 first": ((HAS_V4, HAS_V6), V6),
}


@contextmanager
def network(*commands: Command) -> Iterator[None]:
    """Enter a network of its own; skip the test where none can be made."""
    with ExitStack() as stack:
        try:
            stack.enter_context(own_network(*commands))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespace here: {error}")
        yield


POD_UID = "uid-1"


def environment(pod_ip: str, listen_host: str) -> dict[str, str]:
    """Return the proxy's variables as the kubelet gives them."""
    container = make_proxy(target(MINIMAL, defaults=structs.replace(DEFAULTS, listen_host=listen_host)))
    fields = {"status.podIP": pod_ip, "metadata.uid": POD_UID}
    values = {
        entry["name"]: fields[entry["valueFrom"]["fieldRef"]["fieldPath"]] if "valueFrom" in entry else entry["value"]
        for entry in container["env"]
    }
    return {name: value.replace("$(POD_IP)", pod_ip) for name, value in values.items()}


@contextmanager
def process(module: str, log: Path, environ: dict[str, str]) -> Iterator[None]:
    env = {**os.environ, "PYTHONPATH": ":".join(sys.path), **environ}
    with (
        log.open("wb") as out,
        subprocess.Popen([sys.executable, "-m", module], stdout=out, stderr=out, env=env) as run,
    ):
        try:
            yield
        finally:
            run.kill()


def status(address: str, port: int, path: str) -> int:
    """Return the status of a GET, as of the kubelet's probes; 0 without a response."""
    asking = http.client.HTTPConnection(address, port, timeout=5)
    try:
        asking.request("GET", path)
        return asking.getresponse().status
    except OSError:
        return 0
    finally:
        asking.close()


def eventually(check: Callable[[], bool], log: Path) -> None:
    deadline_s = time.monotonic() + 30
    while not check():
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.05)


@pytest.mark.parametrize("listen_host", ["::", "$(POD_IP)"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_proxy_is_probed_called_and_read_at_its_pods_address(name: str, listen_host: str, tmp_path: Path) -> None:
    commands, pod_ip = NETWORKS[name]
    log = tmp_path / "log"

    async def read() -> list[Reading]:
        scraper = Scraper()
        try:
            return list(await scraper.read([Replica(POD_UID, pod_ip)]))
        finally:
            await scraper.close()

    with network(*commands), process("shoal_proxy", log, environment(pod_ip, listen_host)):
        eventually(lambda: status(pod_ip, ADMIN_PORT, "/healthz") == 200, log)
        assert status(pod_ip, HTTP_PORT, "/v2/health/live") == 200
        assert asyncio.run(read())[0].load is not None


def test_a_kernel_without_ipv6_gives_every_address_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def without_ipv6(family: int = socket.AF_INET, *args: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return real(family, *args)

    monkeypatch.setattr(socket, "socket", without_ipv6)
    with bind(Address("::", 0)) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"


def test_an_operator_responds_to_probes_where_there_is_only_ipv6(tmp_path: Path) -> None:
    log = tmp_path / "log"
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],"
        " clusters: [{name: a, cluster: {server: 'http://[::1]:1'}}], users: [{name: a, user: {token: a}}]}"
    )
    environ = {"KUBECONFIG": str(kubeconfig), "SHOAL_OPERATOR_HEALTH_LISTEN": f"{V6}:8081"}
    with network(HAS_V6, NO_V4), process("shoal_operator", log, environ):
        eventually(lambda: status(V6, 8081, "/healthz") == 200, log)
