"""The API server with its state, socket and certificate; the command of its process."""

import base64
import os
import socket
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import orjson
import uvicorn
import yaml
from click import option

from shoal_local.api_client import make_kubeconfig
from shoal_local.apiserver.app import ApiServer
from shoal_local.apiserver.credentials import Credentials, new_credentials
from shoal_local.apiserver.journal import Journal, restore
from shoal_local.apiserver.schemas.protobuf import NUMBERED
from shoal_local.apiserver.storage.store import Change, Store
from shoal_local.apiserver.verbs.state import ClusterState
from shoal_local.apiserver.verbs.writing import bootstrap
from shoal_local.apiserver.watching import Notifier
from shoal_schema.process.arguments import FILE
from shoal_schema.process.logs import configure

_PATH = "kubernetes-json-schema/v1.37.0-local/_definitions.json"


def load_definitions() -> Mapping[str, Mapping[str, Any]]:
    """Return the OpenAPI definitions of Kubernetes 1.37 by name, with default values and protobuf numbers."""
    text = files("kubernetes_validate").joinpath(_PATH).read_bytes()
    definitions: dict[str, Any] = orjson.loads(text)["$defs"]
    for name, defaults in load_data("defaults.yaml").items():
        for field, value in defaults.items():
            definitions[name]["properties"][field]["default"] = value
    for name, fields in load_data("field_numbers.yaml").items():
        # A message that JSON inlines has no definition of its own.
        definitions.setdefault(name, {})[NUMBERED] = fields
    return definitions


def load_data(name: str) -> Any:
    """Return the content of a YAML file beside this module."""
    return yaml.load(Path(__file__).with_name(name).read_text(), yaml.CSafeLoader)


@dataclass(frozen=True, slots=True)
class Running:
    """A server with a listening socket; run it with ``serve``."""

    url: str
    credentials: Credentials
    api: ApiServer
    uvicorn: uvicorn.Server
    socket: socket.socket

    @property
    def kubeconfig(self) -> str:
        """Return the administrator's kubeconfig."""
        return self.kubeconfig_with(self.credentials.admin_token)

    def kubeconfig_with(self, token: str) -> str:
        """Return the kubeconfig of a token's user."""
        authority = base64.b64encode(self.credentials.authority.encode()).decode()
        document = make_kubeconfig(self.url, {"certificate-authority-data": authority}, token)
        return yaml.safe_dump(document, sort_keys=False)

    def serve(self) -> None:
        """Serve until SIGINT, SIGTERM or ``stop``."""
        self.uvicorn.run(sockets=[self.socket])

    def stop(self) -> None:
        """Stop the server; thread-safe."""
        self.uvicorn.should_exit = True


def make_server(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    snapshot: Path | None = None,
    bookmark_interval_s: float = 60.0,
    service_network: str = "10.96.0.0/16",
) -> Running:
    """Return a server that listens and has the initial objects.

    ``host``: IP address to listen on.
    ``port``: 0 picks a free port.
    ``snapshot``: file of the state, read if it exists; None keeps the state in memory only.
    ``service_network``: network of the services' addresses.

    Raises:
        BrokenJournalError: ``snapshot`` was not written by this server.
        OSError: the address cannot be bound.
    """
    store = Store()
    known = snapshot is not None and snapshot.exists()
    credentials = restore(snapshot, store) if snapshot and known else new_credentials(host)
    state = ClusterState(
        store,
        load_definitions(),
        lambda: str(uuid.uuid4()),
        signing_key=credentials.signing_key.encode(),
        admin_token=credentials.admin_token,
        authority=credentials.authority,
        service_network=service_network,
    )
    # Before the journal: a second server on this port must not touch the file.
    listening = socket.create_server((host, port))
    api = ApiServer(state, Notifier(), bookmark_interval_s)
    journal = Journal(snapshot, credentials, store) if snapshot else None

    def on_change(change: Change) -> None:
        # Written before watchers see it: what clients know must survive a kill.
        if journal:
            journal.record(change)
        api.on_change(change)

    # Before bootstrapping, so that the journal has the initial objects.
    store.listener = on_change
    bootstrap(state, load_data("first_objects.yaml"), datetime.now(UTC))
    url = f"https://{host}:{listening.getsockname()[1]}"
    server = _StoppingServer(_config(api, credentials), api.notifier)
    return Running(url, credentials, api, server, listening)


class _StoppingServer(uvicorn.Server):
    """A uvicorn server that ends its watches before it waits for responses."""

    def __init__(self, config: uvicorn.Config, notifier: Notifier) -> None:
        super().__init__(config)
        self._notifier = notifier

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._notifier.close()
        await super().shutdown(sockets)


def _config(api: ApiServer, credentials: Credentials) -> uvicorn.Config:
    with tempfile.TemporaryDirectory() as directory:
        # The ssl module reads certificates from files only; they are deleted after that.
        certificate, key = Path(directory, "certificate.pem"), Path(directory, "key.pem")
        certificate.write_text(credentials.certificate)
        key.touch(mode=0o600)
        key.write_text(credentials.key)
        config = uvicorn.Config(
            api.app(),
            ssl_certfile=certificate,
            ssl_keyfile=key,
            log_level="warning",
            lifespan="on",
            timeout_graceful_shutdown=2,
            # Other implementations reject the slash in the name of kubectl's protocol.
            ws="wsproto",
        )
        config.load()
    return config


@contextmanager
def running_server(*, snapshot: Path | None = None, bookmark_interval_s: float = 60.0) -> Iterator[Running]:
    """Run a server in a thread, on a free port of loopback, until the block ends."""
    running = make_server(snapshot=snapshot, bookmark_interval_s=bookmark_interval_s)
    thread = threading.Thread(target=running.serve, name="apiserver", daemon=True)
    thread.start()
    try:
        yield running
    finally:
        running.stop()
        thread.join(timeout=10)
        running.socket.close()


@click.command()
@option("--listen", default="127.0.0.1:6443", metavar="HOST:PORT", help="address of the API")
@option("--kubeconfig", type=FILE, required=True, help="written for clients")
@option("--snapshot", type=FILE, help="file that stores the state across restarts")
@option("--service-cidr", default="10.96.0.0/16", help="services' addresses; only loopback addresses are reachable")
def command(listen: str, kubeconfig: Path, snapshot: Path | None, service_cidr: str) -> int:
    """Serve the Kubernetes API on this machine."""
    configure()
    host, _, port = listen.rpartition(":")
    running = make_server(host, int(port), snapshot=snapshot, service_network=service_cidr)
    # Replaced atomically, and readable by its owner only: it holds the administrator's token.
    new = kubeconfig.with_name(f"{kubeconfig.name}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(running.kubeconfig)
    new.replace(kubeconfig)
    running.serve()
    return 0
