from typing import Any

import pytest

from shoal_local.apiserver.access.rbac import GROUP, Action, User, allows, denial, rule_allows
from shoal_local.apiserver.storage.store import Store
from shoal_local.apiserver.verbs.access import service_account

Object = dict[str, Any]
BOT = service_account("team", "bot")


def rule(verbs: str, resources: str = "", group: str = "", **more: Any) -> Object:
    return {"verbs": verbs.split(), "apiGroups": [group], "resources": resources.split(), **more}


@pytest.mark.parametrize(
    ("given", "action", "allowed"),
    [
        (rule("get list", "pods"), Action("get", "", "pods"), True),
        (rule("get list", "pods"), Action("watch", "", "pods"), False),
        (rule("get", "pods"), Action("get", "apps", "pods"), False),
        (rule("get", "pods"), Action("get", "", "pods/log"), False),
        (rule("get", "pods/log"), Action("get", "", "pods/log"), True),
        (rule("get", "*/scale"), Action("get", "", "x/scale"), True),
        (rule("*", "*", "*"), Action("delete", "any.com", "things"), True),
        (rule("get", "pods", resourceNames=["a"]), Action("get", "", "pods", name="a"), True),
        (rule("get", "pods", resourceNames=["a"]), Action("get", "", "pods", name="b"), False),
        (rule("get", "pods", resourceNames=["a"]), Action("list", "", "pods"), False),
        (rule("get", nonResourceURLs=["/api/*"]), Action("get", path="/api/v1"), True),
        (rule("get", nonResourceURLs=["/api"]), Action("get", path="/api/v1"), False),
    ],
)
def test_rules(given: Object, action: Action, *, allowed: bool) -> None:
    assert rule_allows(given, action) is allowed


def roles(*objects: Object) -> Store:
    store = Store()
    for obj in objects:
        store.write(f"{GROUP}/{obj['plural']}", obj)
    return store


def role(plural: str, namespace: str = "") -> Object:
    return {
        "plural": plural,
        "metadata": {"name": "r", "namespace": namespace},
        "rules": [rule("get", "pods")],
    }


def binding(plural: str, kind: str, subject: Object, namespace: str = "") -> Object:
    ref = {"kind": kind, "name": "r"}
    meta = {"name": "b", "namespace": namespace}
    return {"plural": plural, "metadata": meta, "roleRef": ref, "subjects": [subject]}


ACCOUNT = {"kind": "ServiceAccount", "name": "bot", "namespace": "team"}


@pytest.mark.parametrize(
    ("held", "namespace", "allowed"),
    [
        (
            [role("clusterroles"), binding("clusterrolebindings", "ClusterRole", ACCOUNT)],
            "any",
            True,
        ),
        ([role("clusterroles"), binding("rolebindings", "ClusterRole", ACCOUNT, "a")], "a", True),
        ([role("clusterroles"), binding("rolebindings", "ClusterRole", ACCOUNT, "a")], "b", False),
        ([role("clusterroles"), binding("rolebindings", "ClusterRole", ACCOUNT, "a")], "", False),
        ([role("roles", "a"), binding("rolebindings", "Role", ACCOUNT, "a")], "a", True),
        ([role("roles", "b"), binding("rolebindings", "Role", ACCOUNT, "a")], "a", False),
        ([binding("clusterrolebindings", "ClusterRole", ACCOUNT)], "a", False),
    ],
)
def test_a_role_holds_where_it_is_bound(held: list[Object], namespace: str, *, allowed: bool) -> None:
    assert allows(roles(*held), BOT, Action("get", "", "pods", namespace)) is allowed


@pytest.mark.parametrize(
    ("subject", "allowed"),
    [
        ({"kind": "User", "name": "system:serviceaccount:team:bot"}, True),
        ({"kind": "User", "name": "bot"}, False),
        ({"kind": "Group", "name": "system:serviceaccounts:team"}, True),
        ({"kind": "Group", "name": "system:unauthenticated"}, False),
        ({"kind": "ServiceAccount", "name": "bot", "namespace": "else"}, False),
    ],
)
def test_subjects(subject: Object, *, allowed: bool) -> None:
    held = roles(role("clusterroles"), binding("clusterrolebindings", "ClusterRole", subject))
    assert allows(held, BOT, Action("get", "", "pods", "a")) is allowed


def test_masters_may_do_anything() -> None:
    assert allows(roles(), User("a", ("system:masters",)), Action("x", "y", "z"))


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (
            Action("list", "apps", "deployments", "a"),
            'deployments.apps is forbidden: User "u" cannot list resource '
            '"deployments" in API group "apps" '
            'in the namespace "a"',
        ),
        (
            Action("get", "", "nodes", name="n"),
            'nodes "n" is forbidden: User "u" cannot get resource "nodes" in API group "" at the cluster scope',
        ),
        (Action("get", path="/x"), 'forbidden: User "u" cannot get path "/x"'),
    ],
)
def test_refusals_say_who_may_not_do_what_where(action: Action, message: str) -> None:
    error = denial(User("u"), action)
    assert (error.code, error.message) == (403, message)
