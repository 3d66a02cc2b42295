"""Reads a kubeconfig: the server's URL, its certificate authority and the client's credentials."""

import base64
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


class BadKubeconfigError(Exception):
    """The kubeconfig is invalid; the message names the fault."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Address and credentials of one API server."""

    url: str
    tls: ssl.SSLContext
    token: str


def read_kubeconfig(path: Path) -> Connection:
    """Return the connection of the file's current context.

    Raises BadKubeconfigError: a part is missing, or the user needs a credential plugin. Raises OSError: the file, or a
    file that it names, cannot be read.
    """
    document = yaml.safe_load(path.read_text())
    if not isinstance(document, dict):
        raise BadKubeconfigError(f"{path} is not a kubeconfig: expected a mapping")
    # The current context names a cluster and a user.
    context = _named(document, "contexts", document.get("current-context", ""), path)["context"]
    cluster = _named(document, "clusters", context.get("cluster", ""), path)["cluster"]
    user = _named(document, "users", context.get("user", ""), path)["user"]
    if "exec" in user or "auth-provider" in user:
        message = "credential plugins are not supported. Use a token or a client certificate"
        raise BadKubeconfigError(f"{path}: {message}")
    token = user.get("token") or ""
    if "tokenFile" in user:
        token = (path.parent / user["tokenFile"]).read_text().strip()
    # Without a certificate authority the system's are used, and reading them takes 40 ms.
    tls = ssl.create_default_context(cadata=_pem(cluster, "certificate-authority", path.parent) or None)
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    certificate, key = (_pem(user, part, path.parent) for part in ("client-certificate", "client-key"))
    if certificate and key:
        # The ssl module reads client certificates from files only; mkstemp's mode is 0600.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(f"{certificate}\n{key}")
            file.flush()
            tls.load_cert_chain(file.name)
    return Connection(cluster["server"], tls, token)


def _named(document: dict[str, Any], part: str, name: str, path: Path) -> dict[str, Any]:
    for entry in document.get(part) or []:
        if entry.get("name") == name:
            return dict(entry)
    raise BadKubeconfigError(f"{path}: {part} has no entry named {name!r}")


def _pem(part: dict[str, Any], name: str, directory: Path) -> str:
    # Inline data takes precedence over a file, as in kubectl.
    if data := part.get(f"{name}-data"):
        return base64.b64decode(data).decode()
    return (directory / part[name]).read_text() if part.get(name) else ""
