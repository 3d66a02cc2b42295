"""A stand-in for an MLflow server: one registered model of two versions, an alias, and its own store of files."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from e2e.clusters.cluster import MODELS

API = "/api/2.0/mlflow"
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
PODS, OPERATOR = "pods-s3cret", "operator-s3cret"
"""Tokens: one reads files, the other only asks for versions."""


def files_of(version: str) -> dict[str, bytes]:
    """Return the adder; its second version calls its answer z."""
    found = {path.name: path.read_bytes() for path in MODELS["adder"].iterdir() if path.is_file()}
    if version == "2":
        found["handler.py"] = found["handler.py"].replace(b'TensorSpec("y"', b'TensorSpec("z"')
    return found


class Registry(ThreadingHTTPServer):
    """Knows the model `adder`; ``champion`` is the version that its alias names."""

    daemon_threads = True

    def __init__(self) -> None:
        self.champion = "1"
        self.away = False
        self.asked: list[tuple[str, str]] = []
        super().__init__(("127.0.0.1", 0), _RequestHandler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def respond(self, path: str, query: dict[str, str], token: str) -> tuple[int, bytes]:
        """Return status and body."""
        self.asked.append((path, token))
        if self.away:
            return 503, b"away"
        if path == f"{API}/registered-models/alias" and token == OPERATOR:
            known = query["alias"] == "champion"
            return (
                (200, encoded(model_version={"version": self.champion}))
                if known
                else (400, encoded(error_code="INVALID"))
            )
        return self.files(path, query) if token == PODS else (403, b"{}")

    def files(self, path: str, query: dict[str, str]) -> tuple[int, bytes]:
        """Return the list of a version's files, or one of them."""
        if path == f"{API}/model-versions/get-download-uri":
            return 200, encoded(artifact_uri=f"mlflow-artifacts:/{query['name']}/{query['version']}")
        if path == ARTIFACTS:
            found = files_of(query["path"].rpartition("/")[2])
            return 200, encoded(files=[{"path": name, "file_size": len(body)} for name, body in found.items()])
        if path.startswith(f"{ARTIFACTS}/adder/"):
            version, _, name = path.removeprefix(f"{ARTIFACTS}/adder/").partition("/")
            return 200, files_of(version)[name]
        return 404, b"{}"


class _RequestHandler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        token = self.headers.get("authorization", "").removeprefix("Bearer ")
        status, body = self.server.respond(unquote(parts.path), query, token)
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def encoded(**content: object) -> bytes:
    """Return an answer in JSON."""
    return json.dumps(content).encode()


@contextmanager
def registry() -> Iterator[Registry]:
    """Run it."""
    with Registry() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join()
