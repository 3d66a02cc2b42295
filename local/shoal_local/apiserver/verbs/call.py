"""A parsed request: object, verb, options, user and time."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from shoal_local.apiserver.access.rbac import User
from shoal_local.apiserver.errors import bad_request, no_such_path
from shoal_local.objects import Object, timestamp

_TRUE = ("true", "True", "1")


@dataclass(frozen=True, slots=True)
class Target:
    """The resource or object of a request path; ``name`` is '' for a list."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """One API request."""

    verb: str
    target: Target
    user: User
    now: datetime
    """Time of the request, in UTC."""
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = "application/json"
    agent: str = ""
    """The User-Agent header, which names the field manager if the request does not."""

    def flag(self, name: str) -> bool:
        """Return a boolean parameter of the query."""
        return self.query.get(name, "") in _TRUE

    def number(self, name: str) -> float | None:
        """Return a query parameter as a number; None if it is absent. Raises ApiError: 400, it is not a number >= 0."""
        text = self.query.get(name)
        if not text:
            return None
        if not re.fullmatch(r"\d+(\.\d+)?", text):
            raise bad_request(f"{name}: Invalid value: {text!r}: must be a number of at least 0")
        return float(text)

    @property
    def dry_run(self) -> bool:
        """Return whether the request must not change the store."""
        # `All` is the only mode that Kubernetes defines.
        return "All" in self.query.get("dryRun", "")

    @property
    def manager(self) -> str:
        """Return the name of the field manager."""
        return self.query.get("fieldManager") or self.agent.split("/")[0][:128] or "unknown"

    @property
    def timestamp(self) -> str:
        """Return the time of the request in the format of the API."""
        return timestamp(self.now)


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """A response: HTTP code, body, and warnings for kubectl."""

    body: Object
    code: int = 200
    warnings: tuple[str, ...] = ()


def parse_path(path: str) -> Target:
    """Parse ``/api/v1/...`` or ``/apis/<group>/<version>/...``. Raises ApiError: 404, the path has another form."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) >= 3:
        return _below("", parts[1], parts[2:])
    if parts[:1] == ["apis"] and len(parts) >= 4:
        return _below(parts[1], parts[2], parts[3:])
    raise no_such_path()


def _below(group: str, version: str, rest: list[str]) -> Target:
    namespace = ""
    # `namespaces/NAME/status` is a subresource of the namespace, not a collection in it.
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3:
        raise no_such_path()
    plural, name, subresource = (*rest, "", "")[:3]
    return Target(group, version, plural, namespace, name, subresource)


def verb_of(method: str, target: Target, query: Mapping[str, str]) -> str:
    """Return the RBAC verb of a request, such as ``list`` or ``patch``."""
    if method in ("GET", "HEAD"):
        if target.name:
            return "get"
        return "watch" if query.get("watch", "") in _TRUE else "list"
    if method == "DELETE":
        return "delete" if target.name else "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(method, method.lower())
