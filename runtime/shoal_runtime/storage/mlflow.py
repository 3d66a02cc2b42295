"""Store for models and runs on an MLflow server: `models:/NAME/3`, `models:/NAME@ALIAS`, `runs:/RUN/PATH`.

Requests to the server's REST API find the files: in the server's own artifact store, which this module reads, or in a
bucket, which another store reads.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import httpx
import msgspec
from msgspec import Struct

from shoal_runtime.errors import LoadError
from shoal_runtime.storage.listing import ListedFile, Listing, bounded
from shoal_runtime.storage.store import GIVEN_IN, Store, StoreUnavailable
from shoal_runtime.storage.store import open_store as open_other
from shoal_runtime.storage.unpacking import CHUNK_BYTES
from shoal_runtime.storage.web import tls_context_for, why_unreachable
from shoal_schema.resource.locations import (
    MLFLOW,
    OBJECTS,
    LocationError,
    parse,
    redirected,
    rejection_reason,
    scheme_of,
    shown,
    tracking_server,
    version_request,
)

T = TypeVar("T")
TIMEOUT: Final = httpx.Timeout(60.0, connect=10.0)
MAX_STEPS: Final = 6
"""Requests from one URI to the next: an alias, a version, a model's id. More are a cycle."""
ARTIFACTS: Final = "/api/2.0/mlflow-artifacts/artifacts"


class _File(Struct):
    path: str
    is_dir: bool = False
    file_size: int | None = None


class _Directory(Struct):
    files: list[_File] = []


class _Output(Struct):
    model_id: str


class _Outputs(Struct):
    model_outputs: list[_Output] = []


class _Run(Struct):
    outputs: _Outputs = msgspec.field(default_factory=_Outputs)


class _RunResponse(Struct):
    run: _Run


class _Info(Struct):
    name: str = ""


class _Model(Struct):
    info: _Info


class _ModelResponse(Struct):
    model: _Model


@dataclass(frozen=True, slots=True)
class MlflowServer:
    """Client of an MLflow server: address, and headers for each request."""

    base: str
    headers: Mapping[str, str] = field(repr=False)

    def get(self, url: str, what: str, kind: type[T]) -> T:
        """Send a GET request, and parse the response as JSON; ``what`` names the subject in errors.

        Raises:
            StoreUnavailable: the server fails, perhaps temporarily.
            LoadError: the server rejects the request.
        """
        with self.opened(url, what) as response:
            return self.read(response.read(), kind)

    def read(self, body: bytes, kind: type[T]) -> T:
        """Parse a response body as JSON of a given type."""
        try:
            return msgspec.json.decode(body, type=kind, strict=False)
        except msgspec.DecodeError:
            raise LoadError(f"{self.base} does not respond as an MLflow server. Correct MLFLOW_TRACKING_URI") from None

    @contextmanager
    def opened(self, url: str, what: str) -> Iterator[httpx.Response]:
        """Send a GET request, and yield the successful response before its body is read."""

        def check_redirect(response: httpx.Response) -> None:
            # Credentials in headers would follow a redirect to another host.
            if response.has_redirect_location:
                redirected(what, str(response.url), response.headers["location"])

        hooks: dict[str, list[Callable[[httpx.Response], None]]] = {"response": [check_redirect]}
        headers = dict(self.headers)
        try:
            with (
                httpx.Client(
                    timeout=TIMEOUT,
                    headers=headers,
                    follow_redirects=True,
                    event_hooks=hooks,
                    verify=tls_context_for(url),
                ) as client,
                client.stream("GET", url) as response,
            ):
                if response.status_code >= 500 or response.status_code == 429:
                    raise StoreUnavailable(f"the MLflow server returned {response.status_code}")
                if response.status_code != 200:
                    remedy = f". Check the credentials {GIVEN_IN}" if response.status_code in (401, 403) else ""
                    raise LoadError(f"{rejection_reason(what, response.status_code)}{remedy}")
                yield response
        except LocationError as error:
            raise LoadError(str(error)) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise StoreUnavailable(why_unreachable(url, error)) from None


class RegisteredFiles:
    """Files of a model version or run on an MLflow server, in whichever store the server names."""

    def __init__(self, uri: str, environment: Mapping[str, str]) -> None:
        self._uri = uri
        self._environment = environment
        self._server = MlflowServer(*tracking_server(environment))
        self._store: Store | None = None
        self.shown = shown(uri)

    def list(self, at_most: int) -> Listing:
        """List the files of a model version, or of the model that a run logged."""
        found = Listing([])
        for place in self._places():
            self._store = self._store_at(place)
            found = self._store.list(at_most)
            if found.entries:
                break
        return found

    def read(self, entry: ListedFile) -> Iterator[bytes]:
        """Yield the content of a listed file."""
        assert self._store is not None, "only listed files are read"
        return self._store.read(entry)

    def _places(self) -> Iterator[str]:
        """Yield addresses where the files may be, most likely first."""
        uri = self._uri
        for _ in range(MAX_STEPS):
            following, body = self._next(uri)
            if scheme_of(uri) == "runs":
                yield following
                # Since MLflow 3 a run's models are not among its artifacts.
                name, slash, rest = parse(uri).path.partition("/")
                for output in self._server.read(body, _RunResponse).run.outputs.model_outputs:
                    place, model = self._next(f"models:/{output.model_id}")
                    if self._server.read(model, _ModelResponse).model.info.name == name:
                        yield f"{place.rstrip('/')}{slash}{rest}"
                return
            if not body:
                yield uri
                return
            uri = following
        raise LoadError(f"{self.shown} refers to other models in a cycle")

    def _next(self, uri: str) -> tuple[str, bytes]:
        """Query the server for the URI to which a model or run refers.

        Returns:
            That URI, and the body of the response. A URI that already locates files is returned unchanged, with an
            empty body.
        """
        try:
            # The server is only asked about its own schemes: its credentials are sent to no other address.
            asked = version_request(uri, self._environment) if scheme_of(uri) in MLFLOW else None
            if asked is None:
                return uri, b""
            with self._server.opened(asked.url, uri) as response:
                body = response.read()
            return asked.read_uri(self._server.read(body, dict[str, Any])), body
        except LocationError as error:
            raise LoadError(str(error)) from None

    def _store_at(self, place: str) -> Store:
        parts = urlsplit(place)
        if ".." in parts.path.split("/"):
            raise LoadError(f"the MLflow server returned a path outside its own store: {shown(place)}")
        own = f"{self._server.base}{ARTIFACTS}/"
        if place.startswith(own):
            return ArtifactFiles(self._server, place.removeprefix(own).strip("/"), self.shown)
        if parts.scheme == "mlflow-artifacts" and parts.netloc in ("", urlsplit(self._server.base).netloc):
            return ArtifactFiles(self._server, parts.path.strip("/"), self.shown)
        if scheme_of(place) == "wasbs":  # MLflow's name for abfss
            place = place.replace("wasbs:", "abfss:", 1).replace(".blob.", ".dfs.", 1)
        if scheme_of(place) in OBJECTS:
            return open_other(place)
        raise LoadError(
            f"the MLflow server keeps {self.shown} at {shown(place)}, which the runtime cannot read. Start the "
            "server with --serve-artifacts, or let it keep artifacts in a bucket"
        )


class ArtifactFiles:
    """Files below a path of an MLflow server's own artifact store."""

    def __init__(self, server: MlflowServer, path: str, what: str) -> None:
        self._server = server
        self._path = path
        self.shown = what

    def list(self, at_most: int) -> Listing:
        """List the files below the path, or the single file at the path."""
        found = [each for each in bounded(self._all(), at_most) if not each.is_dir]
        if found:
            return Listing([self._entry(each.path, each, f"{self._path}/{each.path}") for each in found])
        parent, _, name = self._path.rpartition("/")
        files = [found for found in self._in(parent) if found.path == name and not found.is_dir]
        return Listing([self._entry(name, each, self._path) for each in files], name if files else None)

    def read(self, entry: ListedFile) -> Iterator[bytes]:
        """Yield the content of a listed file."""
        url = f"{self._server.base}{ARTIFACTS}/{quote(entry.key)}"
        with self._server.opened(url, f"{self.shown} ({entry.path})") as response:
            yield from response.iter_bytes(CHUNK_BYTES)

    def _all(self) -> Iterator[_File]:
        """Yield all files and directories below the path, with relative paths."""
        # Depth first; the server lists one directory per request.
        folders = [""]
        while folders:
            folder = folders.pop()
            for found in self._in(f"{self._path}/{folder}"):
                path = f"{folder}{found.path}"
                yield _File(path, found.is_dir, found.file_size)
                if found.is_dir:
                    folders.append(f"{path}/")

    def _entry(self, path: str, found: _File, key: str) -> ListedFile:
        # The server has no entity tags. Logged files never change; new ones have another path.
        return ListedFile(path, found.file_size or 0, self._path, key)

    def _in(self, directory: str) -> Iterator[_File]:
        url = f"{self._server.base}{ARTIFACTS}?path={quote(directory.rstrip('/'), safe='')}"
        for found in self._server.get(url, self.shown, _Directory).files:
            yield _File(found.path.rpartition("/")[2], found.is_dir, found.file_size)


def open_store(uri: str) -> RegisteredFiles:
    """Return the files at a `models:/` or `runs:/` URI.

    Raises:
        LoadError: the environment names no MLflow server.
    """
    try:
        return RegisteredFiles(uri, os.environ)
    except LocationError as error:
        raise LoadError(f"{error}, {GIVEN_IN}") from None
