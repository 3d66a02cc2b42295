"""Role-based access control: deny, unless some role that is bound to the user allows it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from shoal_local.apiserver.errors import ApiError, forbidden

Object = dict[str, Any]
GROUP = "rbac.authorization.k8s.io"
MASTERS = "system:masters"
_ACCOUNT = "system:serviceaccount:"


class Subject(Protocol):
    """Who asks."""

    @property
    def name(self) -> str:
        """Return the user's name."""

    @property
    def groups(self) -> tuple[str, ...]:
        """Return the groups that the user is in."""


@dataclass(frozen=True, slots=True)
class Action:
    """What is asked for: a verb on a resource, or on a path that is none (``path``)."""

    verb: str
    group: str = ""
    resource: str = ""
    """Plural, with its subresource: ``pods/log``."""
    namespace: str = ""
    name: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Bound:
    """A role that applies to the user in this place, and the binding that says so."""

    rules: tuple[Mapping[str, Any], ...]
    why: str


@dataclass(frozen=True, slots=True)
class Roles:
    """The RBAC objects of the cluster."""

    list_of: Callable[[str], Iterable[Object]]
    """Kind's plural to its objects, of all namespaces."""
    find: Callable[[str, str, str], Object | None]
    """Plural, namespace and name to an object."""

    def bound_to(self, user: Subject, namespace: str) -> Iterator[Bound]:
        """Yield the roles of a user: those bound cluster-wide, and those bound in the namespace."""
        for binding in self.list_of("clusterrolebindings"):
            yield from self._of(binding, user)
        for binding in self.list_of("rolebindings"):
            if namespace and binding["metadata"]["namespace"] == namespace:
                yield from self._of(binding, user)

    def _of(self, binding: Object, user: Subject) -> Iterator[Bound]:
        space, ref = binding["metadata"].get("namespace", ""), binding["roleRef"]
        subject = next((s for s in binding.get("subjects") or [] if _is(s, user, space)), None)
        cluster_wide = ref["kind"] == "ClusterRole"
        plural, where = ("clusterroles", "") if cluster_wide else ("roles", space)
        role = self.find(plural, where, ref["name"]) if subject else None
        if subject and role:
            name = binding["metadata"]["name"]
            named = f"{name}/{space}" if space else name
            kind = "RoleBinding" if space else "ClusterRoleBinding"
            who = (
                f"{subject['name']}/{subject.get('namespace', space)}"
                if _is_account(subject)
                else subject["name"]
            )
            why = (
                f'RBAC: allowed by {kind} "{named}" of {ref["kind"]} "{ref["name"]}" to '
                f'{subject["kind"]} "{who}"'
            )
            yield Bound(tuple(role.get("rules") or ()), why)


def _is_account(subject: Mapping[str, str]) -> bool:
    return subject["kind"] == "ServiceAccount"


def _is(subject: Mapping[str, str], user: Subject, namespace: str) -> bool:
    if subject["kind"] == "Group":
        return subject["name"] in user.groups
    if _is_account(subject):
        return user.name == f"{_ACCOUNT}{subject.get('namespace', namespace)}:{subject['name']}"
    return subject["kind"] == "User" and subject["name"] == user.name


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether, and by which binding."""

    allowed: bool
    reason: str = ""


def decide(user: Subject, action: Action, roles: Roles) -> Decision:
    """Say whether the user may do this."""
    if MASTERS in user.groups:
        return Decision(allowed=True)
    for bound in roles.bound_to(user, action.namespace):
        if any(rule_allows(rule, action) for rule in bound.rules):
            return Decision(allowed=True, reason=bound.why)
    return Decision(allowed=False)


def rule_allows(rule: Mapping[str, Any], action: Action) -> bool:
    """Say whether one rule of a role covers the action."""
    if not _among(action.verb, rule.get("verbs")):
        return False
    if action.path:
        return any(
            _path_fits(pattern, action.path) for pattern in rule.get("nonResourceURLs") or ()
        )
    names = rule.get("resourceNames")
    return (
        _among(action.group, rule.get("apiGroups"))
        and _resource_fits(action.resource, rule.get("resources") or ())
        and (not names or action.name in names)
    )


def _among(value: str, allowed: Iterable[str] | None) -> bool:
    return any(entry in ("*", value) for entry in allowed or ())


def _resource_fits(resource: str, allowed: Iterable[str]) -> bool:
    _, slash, subresource = resource.partition("/")
    wildcards = ("*", resource, f"*/{subresource}") if slash else ("*", resource)
    return any(entry in wildcards for entry in allowed)


def _path_fits(pattern: str, path: str) -> bool:
    return pattern in ("*", path) or (pattern.endswith("*") and path.startswith(pattern[:-1]))


def refusal(user: Subject, action: Action) -> ApiError:
    """Return the 403 that says who may not do what where."""
    if action.path:
        told = f'User "{user.name}" cannot {action.verb} path "{action.path}"'
        return ApiError(403, "Forbidden", f"forbidden: {told}")
    where = f'in the namespace "{action.namespace}"' if action.namespace else "at the cluster scope"
    why = (
        f'User "{user.name}" cannot {action.verb} resource "{action.resource}" '
        f'in API group "{action.group}" {where}'
    )
    return forbidden(action.resource.partition("/")[0], action.group, action.name, why)
