"""A gateway that runs, and how callers from outside reach a service through it."""

import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import trustme
import yaml

from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually
from tests.ports import free_port

HOST = "adder.example"
SECRET = "shoal-adder-tls"
TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Certificate:
    """One for the host of the route, and who vouches for it."""

    chain: Path
    key: Path
    authority: bytes
    trusting: ssl.SSLContext

    @classmethod
    def issued(cls, folder: Path) -> "Certificate":
        """Write a certificate of an authority of its own."""
        authority, trusting = trustme.CA(), ssl.create_default_context()
        issued = authority.issue_cert(HOST)
        authority.configure_trust(trusting)
        chain, key = folder / "chain.pem", folder / "key.pem"
        issued.private_key_pem.write_to_path(key)
        for each in issued.cert_chain_pems:
            each.write_to_path(chain, append=True)
        return cls(chain, key, authority.cert_pem.bytes(), trusting)

    def put_into(self, cluster: Cluster) -> None:
        """Make the Secret that routes name."""
        files = ("--cert", str(self.chain), "--key", str(self.key))
        made = cluster.kubectl("create", "secret", "tls", SECRET, *files, "--dry-run=client", "--output=yaml")
        cluster.kubectl("apply", "--filename", "-", text=made.stdout)


def _name_the_host(request: httpx.Request) -> None:
    """Ask for the route's certificate, whatever address is connected to."""
    request.extensions["sni_hostname"] = HOST


@dataclass(frozen=True)
class Gateway:
    """A gateway in front of the service ``adder``."""

    kind: str
    certificate: Certificate
    log: Path
    route: dict[str, Any] = field(default_factory=dict)
    """What the service's spec says of it."""
    port: int = field(default_factory=free_port)
    secure_port: int = field(default_factory=free_port)

    def client(self, *, secure: bool = False, host: str = HOST) -> httpx.Client:
        """Return a caller that keeps its connections."""
        scheme, port = ("https", self.secure_port) if secure else ("http", self.port)
        return httpx.Client(
            base_url=f"{scheme}://127.0.0.1:{port}",
            headers={"host": host},
            event_hooks={"request": [_name_the_host]},
            timeout=TIMEOUT_S,
            trust_env=False,
            verify=self.certificate.trusting,
        )

    def post(self, path: str, *, host: str = HOST, **request: Any) -> httpx.Response:
        """Ask over a connection of its own."""
        with self.client(host=host) as client:
            return client.post(path, **request)

    @property
    def address(self) -> str:
        """Where plain HTTP is taken."""
        return f"http://127.0.0.1:{self.port}"

    def wait_until_served(self) -> None:
        """Wait until the gateway has taken in the route, plain and encrypted."""

        def answered() -> bool:
            try:
                return all(self._ready(secure=secure) for secure in (False, True))
            except httpx.TransportError:
                return False

        eventually(answered, self.log.read_text)

    def _ready(self, *, secure: bool) -> bool:
        with self.client(secure=secure) as client:
            return client.get("v2/health/ready").status_code == 200


@contextmanager
def running(command: Sequence[str], log: Path, environment: dict[str, str] | None = None) -> Iterator[None]:
    """Run a program until the block ends; what it says goes to a file."""
    with log.open("wb") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=TIMEOUT_S)


@contextmanager
def applied(cluster: Cluster, *objects: dict[str, Any]) -> Iterator[None]:
    """Have objects until the block ends."""
    text = yaml.safe_dump_all(objects)
    cluster.kubectl("apply", "--filename", "-", text=text)
    try:
        yield
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "--filename", "-", text=text)
