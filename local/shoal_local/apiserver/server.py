"""Starts and stops a server: certificates, the first objects, the kubeconfig, the listening socket."""

import base64
import secrets
import socket
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import uvicorn
import yaml

from shoal_local.apiserver.app import ApiServer
from shoal_local.apiserver.certificates import Certificates, make_certificates
from shoal_local.apiserver.definitions import load_definitions
from shoal_local.apiserver.storage.store import Store
from shoal_local.apiserver.verbs.bootstrapping import bootstrap
from shoal_local.apiserver.verbs.world import World
from shoal_local.apiserver.watching import Bell


@dataclass(frozen=True, slots=True)
class Credentials:
    """What clients need to know, and what must outlive a restart."""

    certificates: Certificates
    admin_token: str
    signing_key: bytes


def new_credentials(host: str) -> Credentials:
    """Make certificates for loopback and for ``host``, and fresh secrets."""
    addresses = tuple(dict.fromkeys(("127.0.0.1", "::1", host)))
    certificates = make_certificates(tuple(a for a in addresses if a != "localhost"))
    return Credentials(certificates, secrets.token_urlsafe(32), secrets.token_bytes(32))


def kubeconfig(url: str, credentials: Credentials) -> str:
    """Return a kubeconfig for the administrator."""
    name = "shoal-local"
    authority = base64.b64encode(credentials.certificates.authority.encode()).decode()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": url, "certificate-authority-data": authority}}
        ],
        "users": [{"name": name, "user": {"token": credentials.admin_token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    return yaml.safe_dump(document, sort_keys=False)


@dataclass(slots=True)
class Running:
    """A server that has a socket: serve it, or run it in a thread."""

    url: str
    kubeconfig: str
    api: ApiServer
    uvicorn: uvicorn.Server
    socket: socket.socket

    def serve(self) -> None:
        """Answer requests until a signal comes, or ``stop``."""
        self.uvicorn.run(sockets=[self.socket])

    def stop(self) -> None:
        """Ask the server to end, also from another thread."""
        self.uvicorn.should_exit = True


def make_server(host: str = "127.0.0.1", port: int = 0) -> Running:
    """Bind the address and return a server for it that has the first objects."""
    credentials = new_credentials(host)
    world = World(Store(), load_definitions(), lambda: str(uuid.uuid4()))
    world.signing_key, world.admin_token = credentials.signing_key, credentials.admin_token
    world.authority = credentials.certificates.authority
    bootstrap(world, datetime.now(UTC))
    api = ApiServer(world, Bell())
    world.store.listener = api.notice
    listening = socket.create_server((host, port))
    url = f"https://{host}:{listening.getsockname()[1]}"
    server = _StoppingServer(_config(api, credentials.certificates), api.bell)
    return Running(url, kubeconfig(url, credentials), api, server, listening)


class _StoppingServer(uvicorn.Server):
    """Ends the watches when it stops: they would keep it waiting."""

    def __init__(self, config: uvicorn.Config, bell: Bell) -> None:
        super().__init__(config)
        self._bell = bell

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._bell.close()
        await super().shutdown(sockets)


def _config(api: ApiServer, certificates: Certificates) -> uvicorn.Config:
    with tempfile.TemporaryDirectory() as folder:
        # ssl reads certificates from files only; they are gone once it has.
        certificate, key = Path(folder, "certificate.pem"), Path(folder, "key.pem")
        certificate.write_text(certificates.certificate)
        key.touch(mode=0o600)
        key.write_text(certificates.key)
        config = uvicorn.Config(
            api.app(),
            ssl_certfile=certificate,
            ssl_keyfile=key,
            log_level="warning",
            lifespan="on",
            timeout_graceful_shutdown=2,
        )
        config.load()
    return config


@contextmanager
def running_server(host: str = "127.0.0.1", port: int = 0) -> Iterator[Running]:
    """Run a server in a thread, for as long as the block lasts."""
    running = make_server(host, port)
    thread = threading.Thread(target=running.serve, name="apiserver", daemon=True)
    thread.start()
    try:
        yield running
    finally:
        running.stop()
        thread.join(timeout=10)
        running.socket.close()
