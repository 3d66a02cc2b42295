"""Authentication and authorization of requests, and access reviews."""

import hmac
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import jwt

from shoal_local.apiserver.access.rbac import ACCOUNT, MASTERS, Action, User, allows, denial, read_token
from shoal_local.apiserver.errors import bad_request, unauthorized
from shoal_local.apiserver.kinds.registry import ACCOUNTS
from shoal_local.apiserver.verbs.admission import clean
from shoal_local.apiserver.verbs.call import ApiResponse, Call, decode_object
from shoal_local.apiserver.verbs.state import ClusterState

ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))
AUTHENTICATED = "system:authenticated"
ADMIN = User("kubernetes-admin", (MASTERS, AUTHENTICATED))


def authenticate(state: ClusterState, authorization: str, now: datetime) -> User:
    """Return the user of an Authorization header.

    Raises ApiError: 401, the token is unknown, malformed or expired, or its account was deleted.
    """
    if not authorization:
        return ANONYMOUS
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer":
        raise unauthorized()
    if state.admin_token and hmac.compare_digest(token.encode(), state.admin_token.encode()):
        return ADMIN
    try:
        account = read_token(token, state.signing_key, int(now.timestamp()))
    except (jwt.InvalidTokenError, ValueError, KeyError, TypeError):
        raise unauthorized() from None
    stored = state.store.get(ACCOUNTS, (account.namespace, account.name))
    # A token does not outlive its account, also if that is created again.
    if stored is None or stored["metadata"]["uid"] != account.uid:
        raise unauthorized()
    return service_account(account.namespace, account.name)


def service_account(namespace: str, name: str) -> User:
    """Return the user of a service account."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
    return User(f"{ACCOUNT}{namespace}:{name}", groups)


def impersonated(state: ClusterState, user: User, name: str, groups: Sequence[str]) -> User:
    """Return the impersonated user. Raises ApiError: 403, not allowed."""
    if not name:
        return user
    parts = name.removeprefix(ACCOUNT).split(":")
    # Service accounts are impersonated as such, not as users.
    if name.startswith(ACCOUNT) and len(parts) == 2:
        check(state, user, Action("impersonate", "", "serviceaccounts", parts[0], parts[1]))
        other = service_account(*parts)
    else:
        check(state, user, Action("impersonate", "", "users", name=name))
        other = User(name, (AUTHENTICATED,))
    for group in groups:
        check(state, user, Action("impersonate", "", "groups", name=group))
    return replace(other, groups=(*groups, AUTHENTICATED)) if groups else other


def check(state: ClusterState, user: User, action: Action) -> None:
    """Raise a 403 (ApiError) unless the user may perform the action."""
    if not allows(state.store, user, action):
        raise denial(user, action)


def action_of(call: Call, verb: str = "") -> Action:
    """Return the RBAC action of a request."""
    target = call.target
    resource = f"{target.plural}/{target.subresource}" if target.subresource else target.plural
    # As in Kubernetes, a Namespace is in the namespace of its own name, so a Role there can cover it.
    namespace = target.namespace or (target.name if target.plural == "namespaces" else "")
    # A list or watch may name one object by its field selector.
    named = re.fullmatch("metadata.name=([^,]*)", call.query.get("fieldSelector", ""))
    return Action(verb or call.verb, target.group, resource, namespace, target.name or (named[1] if named else ""))


def review_access(state: ClusterState, call: Call) -> ApiResponse:
    """Respond to a SelfSubjectAccessReview (`kubectl auth can-i`)."""
    resource = state.resource(call.target)
    review = clean(state, resource, decode_object(call, resource))
    spec = review.get("spec") or {}
    attributes = spec.get("resourceAttributes") or spec.get("nonResourceAttributes")
    if not attributes:
        raise bad_request("exactly one of nonResourceAttributes or resourceAttributes must be specified")
    verb, group, name = (attributes.get(part, "") for part in ("verb", "group", "name"))
    plural = "/".join(part for part in (attributes.get("resource"), attributes.get("subresource")) if part)
    space, path = attributes.get("namespace", ""), attributes.get("path", "")
    action = Action(verb, group, plural, space, name, path=path)
    return ApiResponse({**review, "status": {"allowed": allows(state.store, call.user, action)}}, 201)
