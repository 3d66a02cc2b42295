"""Who makes a call, whether they may, and the review that answers the same question to clients."""

import hmac
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from shoal_local.apiserver.access.rbac import GROUP, MASTERS, Action, Roles, User, allows, refusal
from shoal_local.apiserver.access.tokens import BadTokenError, read_token
from shoal_local.apiserver.errors import bad_request, unauthorized
from shoal_local.apiserver.verbs.admission import clean
from shoal_local.apiserver.verbs.call import Call, Reply
from shoal_local.apiserver.verbs.decoding import decode_object
from shoal_local.apiserver.verbs.world import World

ADMIN = User("kubernetes-admin", (MASTERS, "system:authenticated"))
ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))
AUTHENTICATED = "system:authenticated"
ACCOUNT = "system:serviceaccount:"
ACCOUNTS = "/serviceaccounts"


def authenticate(world: World, authorization: str, now: datetime) -> User:
    """Return who sends this Authorization header.

    Raises ApiError: 401, the token is unknown, broken or too old, or its account is gone.
    """
    if not authorization:
        return ANONYMOUS
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer":
        raise unauthorized()
    if world.admin_token and hmac.compare_digest(token.encode(), world.admin_token.encode()):
        return ADMIN
    try:
        account = read_token(token, world.signing_key, int(now.timestamp()))
    except (BadTokenError, ValueError, KeyError, TypeError):
        raise unauthorized() from None
    stored = world.store.get(ACCOUNTS, (account.namespace, account.name))
    if stored is None or stored["metadata"]["uid"] != account.uid:
        raise unauthorized()
    return service_account(account.namespace, account.name)


def service_account(namespace: str, name: str) -> User:
    """Return the user that a service account is."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
    return User(f"{ACCOUNT}{namespace}:{name}", groups)


def impersonated(world: World, user: User, name: str, groups: Sequence[str]) -> User:
    """Return the user that the caller asks to be taken for. Raises ApiError: 403, they may not."""
    if not name:
        return user
    parts = name.removeprefix(ACCOUNT).split(":")
    if name.startswith(ACCOUNT) and len(parts) == 2:
        check(world, user, Action("impersonate", "", "serviceaccounts", parts[0], parts[1]))
        other = service_account(*parts)
    else:
        check(world, user, Action("impersonate", "", "users", name=name))
        other = User(name, (AUTHENTICATED,))
    for group in groups:
        check(world, user, Action("impersonate", "", "groups", name=group))
    return replace(other, groups=(*groups, AUTHENTICATED)) if groups else other


def roles_of(world: World) -> Roles:
    """Return the RBAC objects in the store."""
    store = world.store
    return Roles(
        lambda plural: store.objects_of(f"{GROUP}/{plural}"),
        lambda plural, namespace, name: store.get(f"{GROUP}/{plural}", (namespace, name)),
    )


def check(world: World, user: User, action: Action) -> None:
    """Refuse what the user may not do. Raises ApiError: 403."""
    if not allows(roles_of(world), user, action):
        raise refusal(user, action)


def action_of(call: Call, verb: str = "") -> Action:
    """Return what a call asks for, in the terms of RBAC."""
    target = call.target
    resource = f"{target.plural}/{target.subresource}" if target.subresource else target.plural
    # A namespace is itself in the namespace of its name, so that a Role there can speak of it.
    namespace = target.namespace or (target.name if target.plural == "namespaces" else "")
    # A list or watch may give the one name that it asks for as its field selector.
    named = re.fullmatch("metadata.name=([^,]*)", call.query.get("fieldSelector", ""))
    return Action(verb or call.verb, target.group, resource, namespace, target.name or (named[1] if named else ""))


def review_access(world: World, call: Call) -> Reply:
    """Answer a SelfSubjectAccessReview (`kubectl auth can-i`)."""
    resource = world.resource(call.target)
    review = clean(world, resource, decode_object(call, resource))
    spec = review.get("spec") or {}
    asked = spec.get("resourceAttributes") or spec.get("nonResourceAttributes")
    if not asked:
        raise bad_request("exactly one of nonResourceAttributes or resourceAttributes must be specified")
    verb, group, name = (asked.get(part, "") for part in ("verb", "group", "name"))
    plural = "/".join(part for part in (asked.get("resource"), asked.get("subresource")) if part)
    action = Action(verb, group, plural, asked.get("namespace", ""), name, path=asked.get("path", ""))
    return Reply({**review, "status": {"allowed": allows(roles_of(world), call.user, action)}}, 201)
