"""What a model's URI names, and which GETs tell the version that a moving name stands for. Pure: nobody is asked here.

    hf://OWNER/NAME[@REVISION][/PATH]      moves, unless REVISION is a commit
    models:/NAME/VERSION, models:/ID       do not
    models:/NAME@ALIAS, models:/NAME/latest   move
    runs:/RUN/PATH                         does not

Who resolves asks `question`, does that GET, hands its JSON to `answer`, and goes on with the URI that comes back: as
long as `moves` says so, to pin a version; until there is no question, to learn where its files lie.
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
"""What a cluster mounts; nothing is downloaded."""
SCHEMES: Final = ("file", *WEB, *OBJECTS, "hf", *MLFLOW, *MOUNTED)
_SECRET: Final = "[^/]*(:|%3[aA])[^@]*@"
"""``USER:SECRET@``; a secret may contain slashes, as keys of S3 do."""
CREDENTIALS: Final = (
    "^("
    "(file|s3|gs|az|hf|pvc)://[^/]*@"
    f"|((file|s3|gs|az|abfss|hf|pvc)://|(models|runs):/+){_SECRET}"
    "|abfss://[^/@]*@[^/@]*@"  # CONTAINER@ACCOUNT has one
    f"|oci://([^/]*@|{_SECRET})[^/]*/"  # NAME@DIGEST has no slash behind it
    ")"
)
"""Credentials, in URIs of all schemes but http and https; read by API servers (RE2) too."""
NAKED: Final = f"{CREDENTIALS}|^({'|'.join(SCHEMES[3:])}):/+[^?]*[?]"
"""Credentials or a query, where there can be none."""
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
_HUB_NAME: Final = re.compile("[A-Za-z0-9_-][A-Za-z0-9._-]*")
FIXED: Final = "^(models:/+([^/]+/[0-9]+|[^/@]+)/*|hf://[^/]+/[^/@]+@[0-9a-f]{40}(/.*)?)$"
"""Names of one version, as `moves` tells them; read by API servers too."""
CLAIM: Final = "[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
_COMMIT: Final = re.compile("[0-9a-f]{40}")
_URI: Final = re.compile("([A-Za-z][A-Za-z0-9+.-]*):/+")
_AUTHORITY: Final = re.compile(r"([^@]*@)?(\[[^\]@]*\]|[^:@]*)(:[0-9]*)?")


class LocationError(ValueError):
    """A URI that names no model, or an answer that does not tell where it lies; a sentence with its remedy."""


@dataclass(frozen=True, slots=True)
class Location:
    """What a URI names.

    Args:
        scheme: one of `SCHEMES`.
        authority: the bucket, host, claim or run; `OWNER/NAME` of the hub, the name or id of a registered model.
        path: below it, without a slash in front; of `file`, `http` and `https` as it stands.
        revision: of the hub a branch, tag or commit; of a registered model `VERSION`, `latest` or `@ALIAS`; of an
            image its `:TAG` or `@DIGEST`; empty where none is named.
    """

    scheme: str
    authority: str
    path: str
    revision: str = ""

    @property
    def name(self) -> str:
        """What the model may be called: the last part of its path, else of what holds it; a file's with its suffix."""
        return unquote(self.path.rstrip("/").rpartition("/")[2]) or self.authority.rpartition("/")[2]


def scheme_of(text: str) -> str:
    """Return the scheme of a URI as it is written; empty of what is a path."""
    found = _URI.match(text)
    return found[1] if found else ""


def parse(uri: str) -> Location:
    """Return what a URI names.

    Raises:
        LocationError: its scheme is unknown, it lacks a part, or holds what belongs into the environment.
    """
    scheme, colon, rest = uri.partition(":")
    if not colon or scheme not in SCHEMES or not rest.startswith("/" if scheme in MLFLOW else "//"):
        raise LocationError(f"{shown(uri)} must begin with one of {IN_WORDS}")
    if re.match(NAKED, uri):
        raise LocationError(f"{shown(uri)} must not hold credentials or a query: they belong into the environment")
    if scheme in ("file", *WEB):
        authority, slash, path = re.split("[?#]", rest[2:], maxsplit=1)[0].partition("/")
        return Location(scheme, authority, slash + path)
    rest = rest.lstrip("/") if scheme in MLFLOW else rest[2:]
    location = _PARSERS.get(scheme, _plain)(scheme, rest)
    if not location.authority:
        raise LocationError(f"{shown(uri)} is no model's address: {_FORMS.get(scheme, f'{scheme}://BUCKET/PATH')}")
    return location


def local_path(uri: str) -> str:
    """Return the path on this machine that a ``file://`` names.

    Raises:
        LocationError: it names another machine's.
    """
    location = parse(uri)
    if location.authority not in ("", "localhost"):
        raise LocationError(f"{shown(uri)} names a file of another machine: write file:///PATH for one of this")
    return unquote(location.path)


def moves(uri: str) -> bool:
    """Return whether what ``uri`` names may be another version tomorrow, and a question tells today's.

    Raises:
        LocationError: as `parse` says.
    """
    location = parse(uri)
    if location.scheme == "hf":
        return not _COMMIT.fullmatch(location.revision)
    return location.scheme == "models" and location.revision != "" and not location.revision.isdecimal()


@dataclass(frozen=True, slots=True)
class Question:
    """A GET whose JSON answer tells what a URI stands for.

    Args:
        url: what to ask; it holds no credentials, they are in ``headers``.
        answer: from the answer's JSON to the next URI; raises LocationError where that tells nothing.
    """

    url: str
    headers: Mapping[str, str] = field(repr=False)
    answer: Callable[[Any], str] = field(repr=False)


def question(uri: str, environment: Mapping[str, str]) -> Question | None:
    """Return what to ask about ``uri``; None where it already says where the files lie.

    The hub is asked about what moves alone: ``HF_ENDPOINT``, ``HF_TOKEN``. An MLflow server is asked about all that it
    knows: ``MLFLOW_TRACKING_URI``, ``MLFLOW_TRACKING_TOKEN`` or ``MLFLOW_TRACKING_USERNAME`` and ``_PASSWORD``.

    Raises:
        LocationError: as `parse` says, or the environment does not name the server.
    """
    scheme = uri.partition(":")[0]
    if scheme == "hf" and moves(uri):
        return _of_hub(parse(uri), environment)
    return _of_mlflow(uri, parse(uri), environment) if scheme in MLFLOW else None


def refusal(uri: str, status: int) -> str:
    """Return what to say of a question that was answered with an error which asking again will not mend."""
    scheme = uri.partition(":")[0]
    server, credentials = ("the hub", "HF_TOKEN") if scheme == "hf" else ("the MLflow server", "MLFLOW_TRACKING_TOKEN")
    if status in (401, 403):
        return (
            f"{shown(uri)} may not be read with the credentials that were found ({credentials}): {server} says {status}"
        )
    if status in (400, 404):
        return f"{server} knows no {shown(uri)}: look at its name, and at the version, alias or revision"
    return f"{shown(uri)} cannot be resolved: {server} answered {status}"


def sent_on(uri: str, url: str, location: str) -> str:
    """Return where an answer sends on to, which is asked if it is an address of the same server.

    Raises:
        LocationError: it is another's, which is neither asked nor believed.
    """
    target = urljoin(url, location)
    here, there = _origin(url), _origin(target)
    if here == there:
        return target
    raise LocationError(
        f"{shown(uri)} cannot be resolved: {here} sends on to {there}, which is not asked: give the registry's address"
    )


def tracking_server(environment: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the MLflow server's address and the headers that it wants.

    Raises:
        LocationError: ``MLFLOW_TRACKING_URI`` is not given, or no address of a server.
    """
    given = environment.get("MLFLOW_TRACKING_URI", "")
    if not given.startswith(("http://", "https://")):
        raise LocationError("models:/ and runs:/ need MLFLOW_TRACKING_URI, the http:// or https:// of an MLflow server")
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
    scheme, rest = found[1].lower(), re.split("[?#]", uri[found.end() :], maxsplit=1)[0]
    authority, slash, path = rest.partition("/")
    secret = re.match(CREDENTIALS, uri, re.IGNORECASE) or scheme not in SCHEMES
    # A secret with a slash that was not quoted ends the authority before its time.
    if secret or (scheme in WEB and not _AUTHORITY.fullmatch(authority)):
        return found[0] + rest.rpartition("@")[2]
    authority = authority.rpartition("@")[2] if scheme in WEB else authority
    return f"{found[0]}{authority}{slash}{path}"


def _origin(url: str) -> str:
    """Return scheme, host and port of an address."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2].lower()
    return f"{parts.scheme}://{host.removesuffix({'http': ':80', 'https': ':443'}.get(parts.scheme, ':'))}"


def _plain(scheme: str, rest: str) -> Location:
    authority, _, path = rest.partition("/")
    return Location(scheme, authority, path)


def _claim(scheme: str, rest: str) -> Location:
    claim, _, path = rest.partition("/")
    path = unquote(path)
    # What is mounted lies beside all else that a container has: no path leads out of the claim.
    named = re.fullmatch(CLAIM, claim) and ".." not in path.split("/") and path.isprintable()
    return Location(scheme, claim if named else "", path)


def _hub(scheme: str, rest: str) -> Location:
    owner, _, rest = rest.partition("/")
    name, _, path = rest.rstrip("/").partition("/")
    name, revision = map(unquote, name.partition("@")[::2])
    # Who asks for it has credentials: no name leads to another route of the hub's.
    leads_on = {".", ".."}.isdisjoint(revision.split("/"))
    named = leads_on and all(_HUB_NAME.fullmatch(each) for each in (owner, name))
    return Location(scheme, f"{owner}/{name}" if named else "", unquote(path), revision)


def _registered(scheme: str, rest: str) -> Location:
    name, slash, version = rest.rstrip("/").partition("/")
    if slash:
        named = "/" not in version and name not in (".", "..")
        return Location(scheme, name if named else "", "", version.lower() if version else "")
    name, at, alias = rest.rpartition("@")
    if at and alias:
        return Location(scheme, name, "", f"@{alias}")
    return Location(scheme, "" if at or rest in (".", "..") else rest, "")  # a name is a part of a route


def _image(scheme: str, rest: str) -> Location:
    registry, _, name = rest.partition("/")
    path, at, digest = name.partition("@")
    path, colon, tag = (path, "", "") if at else path.rpartition(":") if ":" in path else (path, "", "")
    return Location(scheme, registry if path else "", path, f"{at or colon}{digest or tag}")


_PARSERS: Final[Mapping[str, Callable[[str, str], Location]]] = {
    "hf": _hub,
    "models": _registered,
    "oci": _image,
    "pvc": _claim,
}


def _of_hub(location: Location, environment: Mapping[str, str]) -> Question:
    base = (environment.get("HF_ENDPOINT") or DEFAULT_HUB).rstrip("/")
    token = environment.get("HF_TOKEN")

    def answer(told: Any) -> str:
        commit = _text(told, "sha", of="the hub")
        return f"hf://{location.authority}@{commit}" + (f"/{quote(location.path)}" if location.path else "")

    return Question(
        f"{base}/api/models/{location.authority}/revision/{quote(location.revision or 'main', safe='')}",
        {"authorization": f"Bearer {token}"} if token else {},
        answer,
    )


def _of_mlflow(uri: str, location: Location, environment: Mapping[str, str]) -> Question:
    base, headers = tracking_server(environment)
    name, revision = location.authority, location.revision

    def ask(route: str, answer: Callable[[Any], str], **query: str) -> Question:
        return Question(f"{base}/api/2.0/mlflow/{route}?{urlencode(query)}".rstrip("?"), headers, answer)

    def told(*keys: str) -> Callable[[Any], str]:
        return lambda answer: _text(answer, *keys, of="the MLflow server")

    if location.scheme == "runs":
        base_of = told("run", "info", "artifact_uri")
        return ask("runs/get", lambda answer: f"{base_of(answer).rstrip('/')}/{location.path}", run_id=name)
    if revision.startswith("@"):
        version = told("model_version", "version")
        return ask(
            "registered-models/alias", lambda answer: f"models:/{name}/{version(answer)}", name=name, alias=revision[1:]
        )
    if revision.isdecimal():
        return ask("model-versions/get-download-uri", told("artifact_uri"), name=name, version=revision)
    if not revision:
        return ask(f"logged-models/{quote(name, safe='')}", told("model", "info", "artifact_uri"))
    stages = {} if revision == "latest" else {"stages": revision}
    return ask("registered-models/get-latest-versions", lambda answer: _latest(uri, name, answer), name=name, **stages)


def _latest(uri: str, name: str, answer: Any) -> str:
    known = answer.get("model_versions") if isinstance(answer, Mapping) else None
    versions = [_text(each, "version", of="the MLflow server") for each in known or ()]
    if not versions:
        raise LocationError(f"{uri} has no version yet: register one, or name another model")
    return f"models:/{name}/{max(map(int, versions))}"


def _text(answer: Any, *keys: str, of: str) -> str:
    """Return the text at a path of keys; that a server answers otherwise is nothing to be guessed at."""
    for key in keys:
        answer = answer.get(key) if isinstance(answer, Mapping) else None
    if not isinstance(answer, str) or not answer:
        raise LocationError(f"{of} does not tell {'.'.join(keys)}: is it what its address says?")
    return answer
