import pytest

from shoal_local.apiserver.access.rbac import Account, User, make_token
from shoal_local.apiserver.errors import ApiError
from shoal_local.apiserver.verbs.access import (
    ADMIN,
    ANONYMOUS,
    authenticate,
    impersonated,
    service_account,
)
from tests.local.apiserver.cluster import CONFIG_MAPS, SIGNING_KEY, START, Cluster, Object, config_map

RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
GROUP = "rbac.authorization.k8s.io"


def grant(cluster: Cluster, rule: Object) -> None:
    """Grant a rule to the default account, and continue as that account."""
    rule = {"apiGroups": [""], "resources": ["configmaps"], **rule}
    cluster.post(f"{RBAC}/roles", {"metadata": {"name": "r"}, "rules": [rule]})
    ref = {"apiGroup": GROUP, "kind": "Role", "name": "r"}
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": "default"}
    binding = {"metadata": {"name": "b"}, "roleRef": ref, "subjects": [subject]}
    cluster.post(f"{RBAC}/rolebindings", binding)
    cluster.user = service_account("default", "default")


def test_nothing_is_allowed_that_no_role_allows(cluster: Cluster) -> None:
    cluster.user = service_account("default", "default")
    with pytest.raises(ApiError) as raised:
        cluster.get(CONFIG_MAPS)
    assert raised.value.code == 403


def test_a_rule_for_one_name_covers_a_list_of_just_that_name(cluster: Cluster) -> None:
    grant(cluster, {"verbs": ["list"], "resourceNames": ["a"]})

    assert cluster.get(f"{CONFIG_MAPS}?fieldSelector=metadata.name=a")["items"] == []
    for query in ("", "?fieldSelector=metadata.name=b"):
        with pytest.raises(ApiError):
            cluster.get(CONFIG_MAPS + query)


def test_an_apply_that_creates_needs_both_verbs(cluster: Cluster) -> None:
    cluster.post(CONFIG_MAPS, config_map("a"))
    grant(cluster, {"verbs": ["patch"]})

    cluster.apply(f"{CONFIG_MAPS}/a", config_map("a", x="1"))
    with pytest.raises(ApiError, match='cannot create resource "configmaps"'):
        cluster.apply(f"{CONFIG_MAPS}/b", config_map("b"))


def test_a_subresource_is_allowed_on_its_own(cluster: Cluster, deployment: Object) -> None:
    path = "/apis/apps/v1/namespaces/default/deployments"
    cluster.post(path, deployment)
    grant(cluster, {"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["patch"]})

    cluster.patch(f"{path}/web/scale", {"spec": {"replicas": 3}})
    with pytest.raises(ApiError, match='cannot patch resource "deployments"'):
        cluster.patch(f"{path}/web", {"spec": {"replicas": 3}})


def test_users_are_known_by_their_tokens(cluster: Cluster) -> None:
    state = cluster.state
    account = cluster.get("/api/v1/namespaces/default/serviceaccounts/default")["metadata"]
    now_s = int(START.timestamp())

    def token(uid: str) -> str:
        holder = Account("default", "default", uid)
        return "Bearer " + make_token(holder, SIGNING_KEY, now_s=now_s, lifetime_s=60)

    assert authenticate(state, "", START) == ANONYMOUS
    assert authenticate(state, "Bearer admin", START) == ADMIN
    user = authenticate(state, token(account["uid"]), START)
    assert user.name == "system:serviceaccount:default:default"
    for bad in ("Bearer x", "Basic admin", "Bearer ", token("of an account that was deleted")):
        with pytest.raises(ApiError) as raised:
            authenticate(state, bad, START)
        assert raised.value.code == 401


def test_taking_anothers_place_needs_leave(cluster: Cluster) -> None:
    assert impersonated(cluster.state, ADMIN, "jane", ["devs"]) == User("jane", ("devs", "system:authenticated"))
    with pytest.raises(ApiError, match='cannot impersonate resource "users"'):
        impersonated(cluster.state, User("joe"), "jane", [])
