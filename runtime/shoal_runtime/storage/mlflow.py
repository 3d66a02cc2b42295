"""Models and runs of an MLflow server, over its REST routes: `models:/NAME/3`, `models:/NAME@ALIAS`, `runs:/RUN/PATH`.

A few questions (`shoal_schema.resource.locations`) lead to where the files lie: in the server's own store of artifacts,
which is read here, or in a bucket, which another store reads.
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
from shoal_runtime.storage.listing import Entry, Listing, bounded
from shoal_runtime.storage.store import GIVEN_IN, Store, StoreAway
from shoal_runtime.storage.store import open_store as open_other
from shoal_runtime.storage.web import verified, why_away
from shoal_runtime.unpacking import CHUNK_BYTES
from shoal_schema.resource.locations import (
    MLFLOW,
    OBJECTS,
    LocationError,
    parse,
    question,
    refusal,
    scheme_of,
    sent_on,
    shown,
    tracking_server,
)

T = TypeVar("T")
TIMEOUT: Final = httpx.Timeout(60.0, connect=10.0)
MOST_STEPS: Final = 6
"""From one URI to the next: an alias, a version, a model's id; more is a circle."""
ARTIFACTS: Final = "/api/2.0/mlflow-artifacts/artifacts"


class _File(Struct):
    path: str
    is_dir: bool = False
    file_size: int | None = None


class _Folder(Struct):
    files: list[_File] = []


class _Output(Struct):
    model_id: str


class _Outputs(Struct):
    model_outputs: list[_Output] = []


class _Run(Struct):
    outputs: _Outputs = msgspec.field(default_factory=_Outputs)


class _RunAnswer(Struct):
    run: _Run


class _Info(Struct):
    name: str = ""


class _Model(Struct):
    info: _Info


class _ModelAnswer(Struct):
    model: _Model


@dataclass(frozen=True, slots=True)
class Server:
    """An MLflow server: its address, and what it wants in each request's head."""

    base: str
    headers: Mapping[str, str] = field(repr=False)

    def ask(self, url: str, what: str, kind: type[T]) -> T:
        """Return what it says of ``what``.

        Raises:
            StoreAway: it may do better next time.
            LoadError: it will not.
        """
        with self.opened(url, what) as response:
            return self.read(response.read(), kind)

    def read(self, body: bytes, kind: type[T]) -> T:
        """Return an answer's JSON."""
        try:
            return msgspec.json.decode(body, type=kind, strict=False)
        except msgspec.DecodeError:
            raise LoadError(f"{self.base} does not answer as MLflow does: is MLFLOW_TRACKING_URI right?") from None

    @contextmanager
    def opened(self, url: str, what: str) -> Iterator[httpx.Response]:
        """Yield a good answer, to be read."""

        def stay(response: httpx.Response) -> None:
            if response.has_redirect_location:
                sent_on(what, str(response.url), response.headers["location"])

        hooks: dict[str, list[Callable[[httpx.Response], None]]] = {"response": [stay]}
        headers = dict(self.headers)
        try:
            with (
                httpx.Client(
                    timeout=TIMEOUT, headers=headers, follow_redirects=True, event_hooks=hooks, verify=verified(url)
                ) as client,
                client.stream("GET", url) as response,
            ):
                if response.status_code >= 500 or response.status_code == 429:
                    raise StoreAway(f"the MLflow server answered {response.status_code}")
                if response.status_code != 200:
                    remedy = f"; look {GIVEN_IN}" if response.status_code in (401, 403) else ""
                    raise LoadError(f"{refusal(what, response.status_code)}{remedy}")
                yield response
        except LocationError as error:
            raise LoadError(str(error)) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise StoreAway(why_away(url, error)) from None


class Registered:
    """The files of what an MLflow server knows under a URI, wherever they lie."""

    def __init__(self, uri: str, environment: Mapping[str, str]) -> None:
        self._uri = uri
        self._environment = environment
        self._server = Server(*tracking_server(environment))
        self._store: Store | None = None
        self.shown = shown(uri)

    def list(self, at_most: int) -> Listing:
        """Return the files of the version, or of the model that a run has logged under that path."""
        found = Listing([])
        for place in self._places():
            self._store = self._store_at(place)
            found = self._store.list(at_most)
            if found.entries:
                break
        return found

    def read(self, entry: Entry) -> Iterator[bytes]:
        """Yield a file's content."""
        assert self._store is not None, "what is read was listed"
        return self._store.read(entry)

    def _places(self) -> Iterator[str]:
        """Yield where the files may lie, the likeliest first."""
        uri = self._uri
        for _ in range(MOST_STEPS):
            following, body = self._next(uri)
            if scheme_of(uri) == "runs":
                yield following
                yield from self._models_of(body, parse(uri).path)
                return
            if not body:
                yield uri
                return
            uri = following
        raise LoadError(f"{self.shown} leads from one model to the next, without end")

    def _models_of(self, run: bytes, path: str) -> Iterator[str]:
        """Yield where a run's models of that name lie: since MLflow 3 they have a place of their own."""
        name, slash, rest = path.partition("/")
        for output in self._server.read(run, _RunAnswer).run.outputs.model_outputs:
            place, body = self._next(f"models:/{output.model_id}")
            if self._server.read(body, _ModelAnswer).model.info.name == name:
                yield f"{place.rstrip('/')}{slash}{rest}"

    def _next(self, uri: str) -> tuple[str, bytes]:
        """Return what a URI stands for, and the answer that says so; of a place of files itself, and nothing."""
        try:
            # Of its own addresses alone: what it leads to is not told its credentials.
            asked = question(uri, self._environment) if scheme_of(uri) in MLFLOW else None
            if asked is None:
                return uri, b""
            with self._server.opened(asked.url, uri) as response:
                body = response.read()
            return asked.answer(self._server.read(body, dict[str, Any])), body
        except LocationError as error:
            raise LoadError(str(error)) from None

    def _store_at(self, place: str) -> Store:
        path = _path_on(self._server, place)
        if path is not None:
            return Artifacts(self._server, path, self.shown)
        if scheme_of(place) == "wasbs":  # as MLflow calls what Azure's other tools call so
            place = place.replace("wasbs:", "abfss:", 1).replace(".blob.", ".dfs.", 1)
        if scheme_of(place) in OBJECTS:
            return open_other(place)
        raise LoadError(
            f"the MLflow server keeps {self.shown} at {shown(place)}, where it cannot be read from here:"
            " start the server with --serve-artifacts, or let it keep artifacts in a bucket"
        )


class Artifacts:
    """The files below one path of an MLflow server's own store."""

    def __init__(self, server: Server, path: str, what: str) -> None:
        self._server = server
        self._path = path
        self.shown = what

    def list(self, at_most: int) -> Listing:
        """Return the files in all folders, or the one file of that path."""
        found = [each for each in bounded(self._all(), at_most) if not each.is_dir]
        entries = [self._entry(each.path, each, f"{self._path}/{each.path}") for each in found]
        return Listing(entries) if entries else self._alone()

    def read(self, entry: Entry) -> Iterator[bytes]:
        """Yield a file's content."""
        url = f"{self._server.base}{ARTIFACTS}/{quote(entry.key)}"
        with self._server.opened(url, f"{self.shown} ({entry.path})") as response:
            yield from response.iter_bytes(CHUNK_BYTES)

    def _all(self) -> Iterator[_File]:
        """Yield all files and folders with their paths from here."""
        folders = [""]
        while folders:
            folder = folders.pop()
            for found in self._in(f"{self._path}/{folder}"):
                path = f"{folder}{found.path}"
                yield _File(path, found.is_dir, found.file_size)
                if found.is_dir:
                    folders.append(f"{path}/")

    def _alone(self) -> Listing:
        parent, _, name = self._path.rpartition("/")
        files = [found for found in self._in(parent) if found.path == name and not found.is_dir]
        return Listing([self._entry(name, each, self._path) for each in files], name if files else None)

    def _entry(self, path: str, found: _File, key: str) -> Entry:
        # The server tells no tag. What was logged stays as it is, so what is new lies at another place.
        return Entry(path, found.file_size or 0, self._path, key)

    def _in(self, folder: str) -> Iterator[_File]:
        url = f"{self._server.base}{ARTIFACTS}?path={quote(folder.rstrip('/'), safe='')}"
        for found in self._server.ask(url, self.shown, _Folder).files:
            yield _File(found.path.rpartition("/")[2], found.is_dir, found.file_size)


def open_store(uri: str) -> Registered:
    """Return the files of what a `models:/` or `runs:/` URI names.

    Raises:
        LoadError: the environment names no MLflow server.
    """
    try:
        return Registered(uri, os.environ)
    except LocationError as error:
        raise LoadError(f"{error}, {GIVEN_IN}") from None


def _path_on(server: Server, place: str) -> str | None:
    """Return the path in the server's own store; None of what lies elsewhere."""
    parts = urlsplit(place)
    if ".." in parts.path.split("/"):
        raise LoadError(f"the MLflow server's answer leads out of its own store: {shown(place)}")
    if place.startswith(f"{server.base}{ARTIFACTS}/"):
        return place.removeprefix(f"{server.base}{ARTIFACTS}/").strip("/")
    here = parts.netloc in ("", urlsplit(server.base).netloc)
    return parts.path.strip("/") if parts.scheme == "mlflow-artifacts" and here else None
