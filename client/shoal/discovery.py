"""The servers of ``shoal serve`` that run on this machine: how they are registered, and how other commands find them.

A server registers in its own directory, to which only its user has access, and which counts only while the server runs.
"""

import os
import shlex
from pathlib import Path

import msgspec

from shoal.directory import directories_in_use
from shoal.serving.errors import LocalError

POD_ADMIN_PORT = 9090
"""Admin port of a proxy in a pod."""
ENTRY = "server.json"
MAX_ENTRY_BYTES = 1 << 20
PASS_URL = "Start one with `shoal serve PATH`, or pass the URL of a server"


class ServedModel(msgspec.Struct, frozen=True):
    """A model or a graph of a server."""

    name: str
    admin_url: str


class LocalServer(msgspec.Struct, frozen=True):
    """A running ``shoal serve``."""

    pid: int
    url: str
    """URL for clients."""
    models: tuple[ServedModel, ...]
    default: str = ""
    """The model of requests that name none; may be empty."""


def register(directory: str, server: LocalServer) -> None:
    """Write a server's entry, or replace it."""
    entry = Path(directory, ENTRY)
    new = entry.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(server))
    new.rename(entry)


def local_servers() -> list[LocalServer]:
    """Return the running servers of this user, by URL."""
    found = []
    for directory in directories_in_use():
        try:
            with open(os.open(directory / ENTRY, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                if os.fstat(file.fileno()).st_uid == os.geteuid():
                    found.append(msgspec.json.decode(file.read(MAX_ENTRY_BYTES), type=LocalServer))
        except (OSError, msgspec.MsgspecError):
            # Another command's directory, or a server of another release.
            continue
    return sorted(found, key=lambda server: server.url)


def admin_urls() -> list[str]:
    """Return the admin URL of every model on this machine.

    Raises:
        LocalError: no server runs.
    """
    urls = [model.admin_url for server in local_servers() for model in server.models]
    if not urls:
        raise LocalError(f"no `shoal serve` of this user runs on this machine. {PASS_URL}")
    return urls


def find_model(command: str, name: str | None) -> tuple[str, str]:
    """Return the URL and the name of the model that a command without a URL means.

    Args:
        command: the command, for the message.
        name: the model's name; None for the only one, or for a server's default.

    Raises:
        LocalError: no model of this name is served, or several are.
    """
    servers = local_servers()
    models = [(server, model.name) for server in servers for model in server.models if name in (None, model.name)]
    if name is None:
        # A graph stands for the models of its steps.
        models = [(server, model) for server, model in models if server.default in ("", model)]
    if len(models) == 1:
        return models[0][0].url, models[0][1]
    if not models:
        what = "no `shoal serve` of this user runs" if name is None else f"no server has a model {name}"
        raise LocalError(f"{what} on this machine. {PASS_URL}")
    lines = [f"  shoal {command} {server.url} --model {shlex.quote(model)}" for server, model in models]
    raise LocalError("\n".join(["several models are served on this machine. Choose one:", *lines]))


def admin_url(url: str, name: str) -> str | None:
    """Return the admin URL of a model at a server's URL; None if the server is not one of this user's."""
    models = [model for server in local_servers() if server.url == url.rstrip("/") for model in server.models]
    return next((model.admin_url for model in models if model.name == name), None)
