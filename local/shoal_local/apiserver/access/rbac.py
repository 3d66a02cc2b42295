"""Role-based access control, and tokens of service accounts.

An action needs a rule in a role of the user. Tokens are JSON Web Tokens that this server signs (HS256) and verifies.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import jwt
from jwt.types import Options

from shoal_local.apiserver.errors import ApiError, forbidden
from shoal_local.apiserver.storage.store import Store

GROUP = "rbac.authorization.k8s.io"
MASTERS = "system:masters"
ACCOUNT = "system:serviceaccount:"
"""Begins the names of service accounts as users."""


@dataclass(frozen=True, slots=True)
class User:
    """The sender of a request."""

    name: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """A verb on a resource, or on a non-resource path (``path``)."""

    verb: str
    group: str = ""
    resource: str = ""
    """Plural, with its subresource: ``pods/log``."""
    namespace: str = ""
    name: str = ""
    path: str = ""


def rules_of(store: Store, user: User, namespace: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rules that apply to a user cluster-wide or in the namespace."""
    identities = {("User", user.name), *(("Group", group) for group in user.groups)}
    bindings = store.objects_of(f"{GROUP}/clusterrolebindings")
    if namespace:
        bindings += store.objects_of(f"{GROUP}/rolebindings", namespace)
    for binding in bindings:
        space, ref = binding["metadata"].get("namespace", ""), binding["roleRef"]
        for subject in binding.get("subjects") or []:
            kind, name = subject["kind"], subject["name"]
            if kind == "ServiceAccount":
                kind, name = "User", f"{ACCOUNT}{subject.get('namespace', space)}:{name}"
            if (kind, name) in identities:
                # A RoleBinding may refer to a ClusterRole and limits it to its namespace.
                role, where = ("clusterroles", "") if ref["kind"] == "ClusterRole" else ("roles", space)
                yield from (store.get(f"{GROUP}/{role}", (where, ref["name"])) or {}).get("rules") or ()
                break


def allows(store: Store, user: User, action: Action) -> bool:
    """Return whether the RBAC objects in the store allow the action to the user."""
    rules = rules_of(store, user, action.namespace)
    return MASTERS in user.groups or any(rule_allows(rule, action) for rule in rules)


def rule_allows(rule: Mapping[str, Any], action: Action) -> bool:
    """Return whether one rule of a role covers the action."""
    if not _among(action.verb, rule.get("verbs")):
        return False
    if action.path:
        return any(fnmatchcase(action.path, pattern) for pattern in rule.get("nonResourceURLs") or ())
    # A subresource is also covered by `*/log`.
    names, subresource = rule.get("resourceNames"), action.resource.partition("/")[2]
    resources = (action.resource, f"*/{subresource}") if subresource else (action.resource,)
    return (
        _among(action.group, rule.get("apiGroups"))
        and any(_among(resource, rule.get("resources")) for resource in resources)
        and (not names or action.name in names)
    )


def _among(value: str, allowed: Iterable[str] | None) -> bool:
    return any(entry in ("*", value) for entry in allowed or ())


def denial(user: User, action: Action) -> ApiError:
    """Return the 403 that names the user, the verb and the resource or path."""
    if action.path:
        message = f'User "{user.name}" cannot {action.verb} path "{action.path}"'
        return ApiError(403, "Forbidden", f"forbidden: {message}")
    where = f'in the namespace "{action.namespace}"' if action.namespace else "at the cluster scope"
    why = f'User "{user.name}" cannot {action.verb} resource "{action.resource}" in API group "{action.group}" {where}'
    return forbidden(action.resource.partition("/")[0], action.group, action.name, why)


ISSUER = "https://kubernetes.default.svc.cluster.local"


@dataclass(frozen=True, slots=True)
class Account:
    """A service account; one that is created again has another uid."""

    namespace: str
    name: str
    uid: str


def make_token(
    account: Account, key: bytes, *, now_s: int, lifetime_s: int, audiences: tuple[str, ...] = (ISSUER,)
) -> str:
    """Return a token for the account; times are seconds since 1970."""
    claims = {
        "aud": list(audiences),
        "exp": now_s + lifetime_s,
        "iat": now_s,
        "iss": ISSUER,
        "kubernetes.io": {"namespace": account.namespace, "serviceaccount": {"name": account.name, "uid": account.uid}},
        "nbf": now_s,
        "sub": f"{ACCOUNT}{account.namespace}:{account.name}",
    }
    return jwt.encode(claims, key)


def read_token(token: str, key: bytes, now_s: int) -> Account:
    """Return the service account of a token.

    Raises jwt.InvalidTokenError: another key signed it, it is malformed, or it has expired.
    """
    # The time is an argument, and a token is valid for any audience.
    unchecked: Options = {"verify_aud": False, "verify_exp": False, "verify_iat": False, "verify_nbf": False}
    claims = jwt.decode(token, key, ["HS256"], options=unchecked)
    if now_s >= claims["exp"]:
        raise jwt.ExpiredSignatureError("the token has expired")
    bound = claims["kubernetes.io"]
    account = bound["serviceaccount"]
    return Account(bound["namespace"], account["name"], account["uid"])
