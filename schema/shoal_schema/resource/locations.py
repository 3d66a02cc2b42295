"""URIs of models, and the GETs that resolve a moving name to a version.

A moving name is a branch, tag or alias. Pure: no request is made here.

    hf://OWNER/NAME[@REVISION][/PATH]         moves, unless REVISION is a commit
    models:/NAME/VERSION, models:/ID          fixed
    models:/NAME@ALIAS, models:/NAME/latest   moves
    runs:/RUN/PATH                            fixed

One pass of resolution makes the GET of `version_request`, and passes the response's JSON to `read_uri`, which returns
the next URI. To pin a version, repeat while `moves` is true. To locate the files, repeat until `version_request`
returns None.
"""

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urljoin, urlsplit, urlunsplit

WEB: Final = ("http", "https")
OBJECTS: Final = ("s3", "gs", "az", "abfss")
MLFLOW: Final = ("models", "runs")
MOUNTED: Final = ("oci", "pvc")
"""Mounted by the cluster, not downloaded."""
SCHEMES: Final = ("file", *WEB, *OBJECTS, "hf", *MLFLOW, *MOUNTED)
_SECRET: Final = "[^/]*(:|%3[aA])[^@]*@"
"""``USER:SECRET@``; a secret may contain slashes, as keys of S3 do."""
CREDENTIALS: Final = (
    "^("
    "(file|s3|gs|az|hf|pvc)://[^/]*@"
    f"|((file|s3|gs|az|abfss|hf|pvc)://|(models|runs):/+){_SECRET}"
    "|abfss://[^/@]*@[^/@]*@"  # CONTAINER@ACCOUNT itself has one @
    f"|oci://([^/]*@|{_SECRET})[^/]*/"  # NAME@DIGEST has no slash after the @
    ")"
)
"""Credentials, in URIs of all schemes but http and https. API servers (RE2) evaluate it too."""
NAKED: Final = f"{CREDENTIALS}|^({'|'.join(SCHEMES[3:])}):/+[^?]*[?]"
"""Credentials or a query, where neither is allowed."""
DEFAULT_HUB: Final = "https://huggingface.co"
IN_WORDS: Final = ", ".join(f"{scheme}:/" if scheme in MLFLOW else f"{scheme}://" for scheme in SCHEMES)
REDIRECTS: Final = (301, 302, 303, 307, 308)
_FORMS: Final = {
    "hf": "hf://OWNER/NAME[@REVISION][/PATH]",
    "models": "models:/NAME/VERSION, models:/NAME@ALIAS or models:/ID",
    "runs": "runs:/RUN/PATH",
    "oci": "oci://REGISTRY/NAME:TAG",
    "pvc": "pvc://CLAIM/PATH, a claim's name and a PATH without ..",
    "abfss": "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH",
}
# Parts of URIs.
_HUB_NAME: Final = re.compile("[A-Za-z0-9_-][A-Za-z0-9._-]*")
FIXED: Final = "^(models:/+([^/]+/[0-9]+|[^/@]+)/*|hf://[^/]+/[^/@]+@[0-9a-f]{40}(/.*)?)$"
"""Names of one version: those for which `moves` is false. API servers (RE2) evaluate it too."""
CLAIM: Final = "[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
_COMMIT: Final = re.compile("[0-9a-f]{40}")
_URI: Final = re.compile("([A-Za-z][A-Za-z0-9+.-]*):/+")
_AUTHORITY: Final = re.compile(r"([^@]*@)?(\[[^\]@]*\]|[^:@]*)(:[0-9]*)?")


class LocationError(ValueError):
    """Error of a URI or a server's response that does not locate a model; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class Location:
    """A parsed model URI."""

    scheme: str
    """One of `SCHEMES`."""
    authority: str
    """The bucket, host, claim or run; `OWNER/NAME` of the hub; name or id of a registered model."""
    path: str
    """Without a leading slash; verbatim for `file`, `http` and `https`."""
    revision: str = ""
    """Branch, tag or commit of the hub.

    `VERSION`, `latest` or `@ALIAS` of a registered model; `:TAG` or `@DIGEST` of an image; empty without one.
    """

    @property
    def name(self) -> str:
        """Default name for the model: the last part of the URI.

        It is the last part of the path, with its suffix. Without a path, it is the last part of the authority.
        """
        return unquote(self.path.rstrip("/").rpartition("/")[2]) or self.authority.rpartition("/")[2]


def scheme_of(text: str) -> str:
    """Return the scheme of a URI as written; empty for a path."""
    found = _URI.match(text)
    return found[1] if found else ""


def parse(uri: str) -> Location:
    """Parse a URI.

    Raises:
        LocationError: the scheme is unknown, a part is missing, or the URI holds credentials or a query.
    """
    scheme, colon, rest = uri.partition(":")
    if not colon or scheme not in SCHEMES or not rest.startswith("/" if scheme in MLFLOW else "//"):
        raise LocationError(f"{shown(uri)} must begin with one of {IN_WORDS}")
    # Check before any other error, whose message would repeat the secret.
    if re.match(NAKED, uri):
        raise LocationError(f"{shown(uri)} must not hold credentials or a query: they belong in the environment")
    if scheme in ("file", *WEB):
        authority, slash, path = re.split("[?#]", rest[2:], maxsplit=1)[0].partition("/")
        return Location(scheme, authority, slash + path)
    rest = rest.lstrip("/") if scheme in MLFLOW else rest[2:]
    if parser := _PARSERS.get(scheme):
        location = parser(scheme, rest)
    else:
        authority, _, path = rest.partition("/")
        location = Location(scheme, authority, path)
    if not location.authority:
        raise LocationError(
            f"{shown(uri)} does not name a model: the form is {_FORMS.get(scheme, f'{scheme}://BUCKET/PATH')}"
        )
    return location


def local_path(uri: str) -> str:
    """Return the local path of a ``file://`` URI.

    Raises:
        LocationError: the URI names another machine.
    """
    location = parse(uri)
    if location.authority not in ("", "localhost"):
        raise LocationError(f"{shown(uri)} names a file of another machine: write file:///PATH for a local one")
    return unquote(location.path)


def moves(uri: str) -> bool:
    """Return whether ``uri`` is a moving name, which a server resolves to a version.

    Raises:
        LocationError: as in `parse`.
    """
    location = parse(uri)
    if location.scheme == "hf":
        return not _COMMIT.fullmatch(location.revision)
    return location.scheme == "models" and location.revision != "" and not location.revision.isdecimal()


@dataclass(frozen=True, slots=True)
class VersionRequest:
    """A GET whose JSON response resolves a URI."""

    url: str
    """Without credentials, which are in ``headers``."""
    headers: Mapping[str, str] = field(repr=False)
    read_uri: Callable[[Any], str] = field(repr=False)
    """Returns the next URI from the response's JSON; raises LocationError if it has none."""


def version_request(uri: str, environment: Mapping[str, str]) -> VersionRequest | None:
    """Return the GET that resolves ``uri``, or None if it already locates the files.

    The hub (``HF_ENDPOINT``, ``HF_TOKEN``) resolves moving names only. An MLflow server (``MLFLOW_TRACKING_URI``,
    ``MLFLOW_TRACKING_TOKEN``, or ``MLFLOW_TRACKING_USERNAME`` and ``_PASSWORD``) resolves all of its names.

    Raises:
        LocationError: as in `parse`, or the environment does not name the server.
    """
    scheme = uri.partition(":")[0]
    if scheme == "hf" and moves(uri):
        return _of_hub(parse(uri), environment)
    return _of_mlflow(uri, parse(uri), environment) if scheme in MLFLOW else None


def rejection_reason(uri: str, status: int) -> str:
    """Return the error message for a final response status, such as 404, of the server that resolves ``uri``."""
    scheme = uri.partition(":")[0]
    server, credentials = ("the hub", "HF_TOKEN") if scheme == "hf" else ("the MLflow server", "MLFLOW_TRACKING_TOKEN")
    if status in (401, 403):
        return (
            f"{shown(uri)} cannot be read with the credentials in the environment: {server} returned {status}."
            f" Check {credentials}"
        )
    if status in (400, 404):
        return f"{server} does not have {shown(uri)}: check the name, and the version, alias or revision"
    return f"{shown(uri)} cannot be resolved: {server} returned {status}"


def redirected(uri: str, url: str, location: str) -> str:
    """Return the target of a redirect, which must stay on the same server.

    Raises:
        LocationError: the target is another server, which would get the credentials.
    """
    target = urljoin(url, location)
    here, there = _origin(url), _origin(target)
    if here == there:
        return target
    raise LocationError(
        f"{shown(uri)} cannot be resolved: {here} redirects to {there}, which is not followed. Set the registry's own"
        " address"
    )


def tracking_server(environment: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the MLflow server's address and the headers of its requests.

    Raises:
        LocationError: ``MLFLOW_TRACKING_URI`` is unset, or not the URL of a server.
    """
    given = environment.get("MLFLOW_TRACKING_URI", "")
    if not given.startswith(("http://", "https://")):
        raise LocationError(
            "models:/ and runs:/ require MLFLOW_TRACKING_URI, the HTTP or HTTPS URL of an MLflow server"
        )
    # Credentials of the URL move to a header, so that logs of URLs do not have them.
    parts = urlsplit(given)
    user, host = parts.netloc.rpartition("@")[::2]
    name, password = map(unquote, user.partition(":")[::2])
    name = environment.get("MLFLOW_TRACKING_USERNAME") or name
    password = environment.get("MLFLOW_TRACKING_PASSWORD") or password
    token = environment.get("MLFLOW_TRACKING_TOKEN")
    headers = {}
    if name:
        headers["authorization"] = f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"
    elif token:
        headers["authorization"] = f"Bearer {token}"
    return urlunsplit(parts._replace(netloc=host, query="", fragment="")).rstrip("/"), headers


def shown(uri: str) -> str:
    """Return a URI without user, password, query and fragment, any of which may be secret."""
    if not (found := _URI.match(uri)):
        return uri
    # Queries may hold signatures.
    scheme, rest = found[1].lower(), re.split("[?#]", uri[found.end() :], maxsplit=1)[0]
    authority, slash, path = rest.partition("/")
    secret = re.match(CREDENTIALS, uri, re.IGNORECASE) or scheme not in SCHEMES
    # An unquoted slash inside a secret ends the authority early.
    if secret or (scheme in WEB and not _AUTHORITY.fullmatch(authority)):
        return found[0] + rest.rpartition("@")[2]
    authority = authority.rpartition("@")[2] if scheme in WEB else authority
    return f"{found[0]}{authority}{slash}{path}"


def _origin(url: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2].lower()
    return f"{parts.scheme}://{host.removesuffix({'http': ':80', 'https': ':443'}.get(parts.scheme, ':'))}"


def _claim(scheme: str, rest: str) -> Location:
    claim, _, path = rest.partition("/")
    path = unquote(path)
    # The claim is mounted into a container: a path with .. would lead out of it.
    named = re.fullmatch(CLAIM, claim) and ".." not in path.split("/") and path.isprintable()
    return Location(scheme, claim if named else "", path)


def _hub(scheme: str, rest: str) -> Location:
    owner, _, rest = rest.partition("/")
    name, _, path = rest.rstrip("/").partition("/")
    # The hub's names have no @; revisions may be quoted.
    name, revision = map(unquote, name.partition("@")[::2])
    # The request carries credentials: a name must not lead to another route of the hub.
    leads_on = {".", ".."}.isdisjoint(revision.split("/"))
    named = leads_on and all(_HUB_NAME.fullmatch(each) for each in (owner, name))
    return Location(scheme, f"{owner}/{name}" if named else "", unquote(path), revision)


def _registered(scheme: str, rest: str) -> Location:
    name, slash, version = rest.rstrip("/").partition("/")
    if slash:
        named = "/" not in version and name not in (".", "..")
        return Location(scheme, name if named else "", "", version.lower() if version else "")
    # An alias, or the id of a logged model.
    name, at, alias = rest.rpartition("@")
    if at and alias:
        return Location(scheme, name, "", f"@{alias}")
    return Location(scheme, "" if at or rest in (".", "..") else rest, "")  # the name becomes part of a route


def _image(scheme: str, rest: str) -> Location:
    registry, _, name = rest.partition("/")
    path, at, digest = name.partition("@")
    # A digest takes precedence over a tag.
    path, colon, tag = (path, "", "") if at else path.rpartition(":") if ":" in path else (path, "", "")
    return Location(scheme, registry if path else "", path, f"{at or colon}{digest or tag}")


_PARSERS: Final[Mapping[str, Callable[[str, str], Location]]] = {
    "hf": _hub,
    "models": _registered,
    "oci": _image,
    "pvc": _claim,
}


def _of_hub(location: Location, environment: Mapping[str, str]) -> VersionRequest:
    base = (environment.get("HF_ENDPOINT") or DEFAULT_HUB).rstrip("/")
    token = environment.get("HF_TOKEN")

    def read_uri(document: Any) -> str:
        commit = _text(document, "sha", of="the hub")
        return f"hf://{location.authority}@{commit}" + (f"/{quote(location.path)}" if location.path else "")

    return VersionRequest(
        f"{base}/api/models/{location.authority}/revision/{quote(location.revision or 'main', safe='')}",
        {"authorization": f"Bearer {token}"} if token else {},
        read_uri,
    )


def _of_mlflow(uri: str, location: Location, environment: Mapping[str, str]) -> VersionRequest:
    base, headers = tracking_server(environment)
    name, revision = location.authority, location.revision

    def get(route: str, answer: Callable[[Any], str], **query: str) -> VersionRequest:
        return VersionRequest(f"{base}/api/2.0/mlflow/{route}?{urlencode(query)}".rstrip("?"), headers, answer)

    def field_at(*keys: str) -> Callable[[Any], str]:
        return lambda answer: _text(answer, *keys, of="the MLflow server")

    if location.scheme == "runs":
        base_of = field_at("run", "info", "artifact_uri")
        return get("runs/get", lambda answer: f"{base_of(answer).rstrip('/')}/{location.path}", run_id=name)
    if revision.startswith("@"):
        version = field_at("model_version", "version")
        return get(
            "registered-models/alias", lambda answer: f"models:/{name}/{version(answer)}", name=name, alias=revision[1:]
        )
    if revision.isdecimal():
        return get("model-versions/get-download-uri", field_at("artifact_uri"), name=name, version=revision)
    if not revision:
        return get(f"logged-models/{quote(name, safe='')}", field_at("model", "info", "artifact_uri"))

    def latest(document: Any) -> str:
        known = document.get("model_versions") if isinstance(document, Mapping) else None
        versions = [_text(each, "version", of="the MLflow server") for each in known or ()]
        if not versions:
            raise LocationError(f"{uri} has no version: register one, or name another model")
        return f"models:/{name}/{max(map(int, versions))}"

    # MLflow's stages are deprecated names of a version; "latest" is the newest of all stages.
    stages = {} if revision == "latest" else {"stages": revision}
    return get("registered-models/get-latest-versions", latest, name=name, **stages)


def _text(answer: Any, *keys: str, of: str) -> str:
    for key in keys:
        answer = answer.get(key) if isinstance(answer, Mapping) else None
    if not isinstance(answer, str) or not answer:
        raise LocationError(f"the response of {of} has no {'.'.join(keys)}. Check its address")
    return answer
