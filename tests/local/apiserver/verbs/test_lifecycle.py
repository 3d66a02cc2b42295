import pytest

from shoal_local.apiserver.errors import ApiError
from tests.local.apiserver.cluster import (
    CONFIG_MAPS,
    CRDS,
    DEPLOYMENTS,
    PODS,
    WIDGETS,
    Cluster,
    Object,
    config_map,
    widget,
)

WEB = f"{DEPLOYMENTS}/web"


def test_the_generation_counts_changes_of_the_spec_only(cluster: Cluster, deployment: Object) -> None:
    cluster.post(DEPLOYMENTS, deployment)
    cluster.patch(WEB, {"metadata": {"labels": {"a": "b"}}})
    cluster.patch(f"{WEB}/status", {"status": {"replicas": 1}})
    assert cluster.get(WEB)["metadata"]["generation"] == 1

    cluster.patch(WEB, {"spec": {"replicas": 5}})
    assert cluster.get(WEB)["metadata"]["generation"] == 2


def test_each_endpoint_writes_its_own_part(cluster: Cluster, crd: Object) -> None:
    cluster.post(CRDS, crd)
    made = cluster.post(WIDGETS, {**widget(), "status": {"phase": "sent"}})
    assert "status" not in made

    both = {"spec": {"size": 9}, "status": {"phase": "new"}}
    assert cluster.patch(f"{WIDGETS}/w/status", both)["spec"]["size"] == 3
    after = cluster.patch(f"{WIDGETS}/w", both)
    assert (after["spec"]["size"], after["status"]) == (9, {"phase": "new"})


def test_a_write_that_changes_nothing_is_none(cluster: Cluster, deployment: Object) -> None:
    made = cluster.post(DEPLOYMENTS, deployment)
    cluster.later(100)

    assert cluster.patch(WEB, {"spec": {"replicas": 2}}) == made
    assert cluster.request("PUT", WEB, made).body == made


def test_an_update_from_an_old_version_is_a_conflict(cluster: Cluster) -> None:
    old = cluster.post(CONFIG_MAPS, config_map("a"))
    cluster.patch(f"{CONFIG_MAPS}/a", {"data": {"x": "1"}})

    with pytest.raises(ApiError, match='Operation cannot be fulfilled on configmaps "a"') as raised:
        cluster.request("PUT", f"{CONFIG_MAPS}/a", {**old, "data": {"y": "1"}})
    assert raised.value.code == 409


def test_what_the_server_owns_cannot_be_changed(cluster: Cluster) -> None:
    made = cluster.post(CONFIG_MAPS, config_map("a"))["metadata"]
    changed = {
        "creationTimestamp": "2000-01-01T00:00:00Z",
        "deletionTimestamp": "2000-01-01T00:00:00Z",
    }

    after = cluster.patch(f"{CONFIG_MAPS}/a", {"metadata": changed, "data": {"x": "1"}})["metadata"]
    assert after["creationTimestamp"] == made["creationTimestamp"]
    assert "deletionTimestamp" not in after
    with pytest.raises(ApiError, match="Precondition failed: UID"):
        cluster.patch(f"{CONFIG_MAPS}/a", {"metadata": {"uid": "other"}})


def test_a_dry_run_changes_nothing(cluster: Cluster, deployment: Object) -> None:
    revision = cluster.state.store.revision
    assert cluster.post(DEPLOYMENTS, deployment, dryRun="All")["spec"]["strategy"]
    assert cluster.state.store.revision == revision


def test_names_are_made_from_a_prefix(cluster: Cluster) -> None:
    made = [cluster.post(CONFIG_MAPS, {"metadata": {"generateName": "a-"}}) for _ in range(2)]
    names = {obj["metadata"]["name"] for obj in made}
    assert len(names) == 2
    assert all(name.startswith("a-") for name in names)


def test_pods_get_what_a_cluster_gives_them(cluster: Cluster, pod: Object) -> None:
    pod["spec"]["containers"][0] |= {
        "resources": {"limits": {"cpu": 1, "memory": "64Mi"}},
        "readinessProbe": {"httpGet": {"port": 80}},
    }
    made = cluster.post(PODS, pod)

    spec, container = made["spec"], made["spec"]["containers"][0]
    assert made["status"] == {"phase": "Pending"}
    assert (spec["serviceAccountName"], spec["terminationGracePeriodSeconds"]) == ("default", 30)
    assert container["resources"]["requests"] == {"cpu": "1", "memory": "64Mi"}
    assert container["readinessProbe"] == {
        "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }


def test_a_running_pod_is_given_time_and_one_on_no_node_goes_at_once(cluster: Cluster, pod: Object) -> None:
    cluster.post(PODS, pod)
    cluster.post(f"{PODS}/one/binding", {"target": {"kind": "Node", "name": "n"}})
    with pytest.raises(ApiError, match='pod one is already assigned to node "n"'):
        cluster.post(f"{PODS}/one/binding", {"target": {"name": "m"}})

    marked = cluster.delete(f"{PODS}/one")["metadata"]
    assert (marked["deletionGracePeriodSeconds"], marked["deletionTimestamp"]) == (
        30,
        "2026-01-02T03:04:35Z",
    )
    assert cluster.delete(f"{PODS}/one", gracePeriodSeconds=60)["metadata"] == marked
    assert cluster.delete(f"{PODS}/one", gracePeriodSeconds=5)["metadata"]["deletionGracePeriodSeconds"] == 5
    cluster.delete(f"{PODS}/one", gracePeriodSeconds=0)
    with pytest.raises(ApiError, match="not found"):
        cluster.get(f"{PODS}/one")

    cluster.post(PODS, pod)
    cluster.delete(f"{PODS}/one")
    with pytest.raises(ApiError, match="not found"):
        cluster.get(f"{PODS}/one")


def test_services_get_addresses_of_their_own_and_keep_them(cluster: Cluster) -> None:
    path = "/api/v1/namespaces/default/services"
    made = [cluster.post(path, {"metadata": {"name": n}, "spec": {"ports": [{"port": 80}]}}) for n in "ab"]

    assert [s["spec"]["clusterIP"] for s in made] == ["10.96.0.2", "10.96.0.3"]
    assert cluster.patch(f"{path}/a", {"spec": {"selector": {"x": "y"}}})["spec"]["clusterIP"] == "10.96.0.2"
    headless = cluster.post(path, {"metadata": {"name": "h"}, "spec": {"clusterIP": "None"}})
    assert headless["spec"]["clusterIPs"] == ["None"]
    with pytest.raises(ApiError, match="provided IP is already allocated"):
        cluster.post(
            path,
            {"metadata": {"name": "c"}, "spec": {"clusterIP": "10.96.0.2", "ports": [{"port": 1}]}},
        )


def test_secrets_take_plain_text(cluster: Cluster) -> None:
    body = {"metadata": {"name": "s"}, "stringData": {"a": "text"}}
    made = cluster.post("/api/v1/namespaces/default/secrets", body)
    assert (made["type"], made["data"]) == ("Opaque", {"a": "dGV4dA=="})
    assert "stringData" not in made


def test_a_stricter_schema_lets_old_objects_be_written(cluster: Cluster, crd: Object) -> None:
    cluster.post(CRDS, crd)
    cluster.post(WIDGETS, widget(size=8))
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["size"]["maximum"] = 5
    cluster.patch(f"{CRDS}/widgets.example.com", {"spec": crd["spec"]})

    cluster.patch(f"{WIDGETS}/w/status", {"status": {"phase": "fine"}})
    cluster.patch(f"{WIDGETS}/w", {"spec": {"color": "green"}})
    with pytest.raises(ApiError, match="should be less than or equal to 5"):
        cluster.patch(f"{WIDGETS}/w", {"spec": {"size": 9}})


def test_a_rule_sees_the_former_value(cluster: Cluster, crd: Object) -> None:
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    rule = {
        "rule": "self == oldSelf",
        "message": "size cannot be changed",
        "reason": "FieldValueForbidden",
    }
    spec["properties"]["size"]["x-kubernetes-validations"] = [rule]
    cluster.post(CRDS, crd)
    cluster.post(WIDGETS, widget())

    with pytest.raises(ApiError, match=r"spec\.size: Forbidden: size cannot be changed"):
        cluster.patch(f"{WIDGETS}/w", {"spec": {"size": 4}})


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("metadata", "name"), "other", r"must be spec\.names\.plural"),
        (
            ("spec", "versions", 0, "storage"),
            False,
            "exactly one version marked as storage version",
        ),
        (("spec", "versions", 0, "schema"), None, "schemas are required"),
        (
            ("spec", "versions", 0, "schema", "openAPIV3Schema", "x-kubernetes-validations"),
            [{"rule": "self.a +* 1"}],
            "compilation failed",
        ),
        (
            (
                "spec",
                "versions",
                0,
                "schema",
                "openAPIV3Schema",
                "properties",
                "spec",
                "properties",
                "size",
                "default",
            ),
            99,
            "should be less than or equal to 10",
        ),
        (
            ("spec", "versions", 0, "schema", "openAPIV3Schema", "properties", "spec", "type"),
            None,
            "must not be empty for specified object fields",
        ),
        (
            ("spec", "versions", 0, "additionalPrinterColumns", 0, "jsonPath"),
            "$[",
            "cannot read the JSONPath",
        ),
    ],
)
def test_definitions_that_cannot_work_are_refused(
    cluster: Cluster, crd: Object, path: tuple[str | int, ...], value: object, message: str
) -> None:
    at = crd
    for step in path[:-1]:
        at = at[step]  # type: ignore[index]
    at[path[-1]] = value  # type: ignore[index]

    with pytest.raises(ApiError, match=message):
        cluster.post(CRDS, crd)


def test_a_rule_that_cannot_be_evaluated_says_why(cluster: Cluster, crd: Object) -> None:
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["x-kubernetes-validations"] = [{"rule": "self.min > 0", "message": "m"}]
    cluster.post(CRDS, crd)
    with pytest.raises(ApiError, match=r"spec: Invalid value: .*min.* evaluating rule: m"):
        cluster.post(WIDGETS, widget())
