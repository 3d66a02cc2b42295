"""The chart, through the real Helm SDK: linted, rendered, and refused where the values are wrong."""

import json
import re
from collections.abc import Iterator, Mapping

import kubernetes_validate
import pytest
import yaml
from helm_python import Chart, HelmError, lint
from msgspec import Struct

from shoal_operator.manifests.desired import READ_CHILDREN
from shoal_operator.settings import Settings
from shoal_schema.decoding import parse_spec
from shoal_schema.fields.declaring import ACTIVATOR, Json
from shoal_schema.process.environment import read, variables
from shoal_schema.process.settings.activator import ActivatorProcess
from shoal_schema.publishing.batch import batches
from shoal_schema.publishing.crd import custom_resource_definition, services
from shoal_schema.publishing.graph import graphs
from shoal_schema.resource.policy import Policy
from shoal_schema.version import VERSION
from tests.operator.admission import refused_by_restricted, refused_by_restricted_v2
from tests.operator.chart.rendering import PATH, by_kind, container_of, environment, installed, rendered, with_images

NAMESPACED = {"watchNamespaces": ["team-a", "team-b"]}
FULL = {
    "replicas": 2,
    "metricsNamespaces": ["monitoring"],
    "podListenHost": "$(POD_IP)",
    "podFsGroup": 1_000_620_000,
    "serviceUrl": "http://$(CLUSTER_IP)",
    "verbose": True,
    "logFormat": "json",
    "scaleDownWindowSeconds": 60,
    "priorityClassName": "high",
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "podAnnotations": {"a": "b"},
    "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
    "serviceAccount": {"name": "own", "annotations": {"a": "b"}},
    "images": {"operator": {"digest": "sha256:" + "0" * 64}, "pullSecrets": [{"name": "registry"}]},
}


@pytest.fixture(scope="module")
def chart() -> Iterator[Chart]:
    with Chart.load(PATH) as loaded:
        yield loaded


OFF: Mapping[str, Json] = {
    "crds": {"install": False},
    "activator": {"enabled": False},
    "podDisruptionBudget": {"enabled": False},
    "networkPolicies": {"enabled": False},
    "userRoles": {"create": False},
    "tests": {"enabled": False},
    "serviceAccount": {"create": False, "name": "own"},
}
"""Each part of the chart that can be left out."""
MATRIX: Mapping[str, Json] = {
    "default": {},
    "full": FULL,
    "namespaced": NAMESPACED,
    "namespaced-full": FULL | NAMESPACED,
    "nothing": dict(OFF),
    **{f"without-{name}": {name: off} for name, off in OFF.items()},
    **{f"namespaced-without-{name}": NAMESPACED | {name: off} for name, off in OFF.items()},
    "peers": {
        "networkPolicies": {
            "operator": {"ports": [443], "egress": [{"ports": [{"protocol": "TCP", "port": 5000}]}]},
            "activator": {"from": [{"namespaceSelector": {}}], "egress": [{"to": [{"podSelector": {}}]}]},
        }
    },
    "apart": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}},
    "going": {"crds": {"keep": False}, "replicas": 0, "peers": False},
}


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_what_is_rendered_passes_the_strict_schemas_of_kubernetes(chart: Chart, values: Json) -> None:
    objects = rendered(chart, **values)
    for body in objects:
        kubernetes_validate.validate(body, "1.37", strict=True)
    assert len({(b["kind"], b["metadata"].get("namespace"), b["metadata"]["name"]) for b in objects}) == len(objects)


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_helms_linter_finds_nothing_in_it(values: Json) -> None:
    information = 1
    messages = lint(PATH, values, strict=True)["messages"]

    assert [message for message in messages if message["severity"] > information] == []


@pytest.mark.parametrize("values", [{}, FULL, NAMESPACED], ids=["default", "full", "namespaced"])
def test_every_setting_that_is_rendered_is_known_to_the_operator(chart: Chart, values: Json) -> None:
    assert environment(rendered(chart, **values)).keys() - {"POD_IP", "HF_TOKEN"} <= set(variables())


def test_operator_that_does_not_respond_is_not_ready(chart: Chart) -> None:
    container = container_of(rendered(chart))

    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}


def properties(schema: Json, chosen: Json) -> Iterator[tuple[str, Json, object]]:
    """Yield each value that a part of the schema knows, with its place, and what values.yaml says of it."""
    definitions = json.loads((PATH / "values.schema.json").read_text())["definitions"]
    for part in (*schema.get("allOf", ()), schema):
        named = definitions[part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        for name, given in named.get("properties", {}).items():
            inner = {**definitions[given["$ref"].rpartition("/")[2]], **given} if "$ref" in given else given
            own = chosen.get(name)
            yield name, inner, own
            for path, below, value in properties(inner, own if isinstance(own, dict) else {}):
                yield f"{name}.{path}", below, value


def test_every_value_is_described_and_none_is_taken_that_is_not(chart: Chart) -> None:
    schema = json.loads((PATH / "values.schema.json").read_text())
    known = {path: inner for path, inner, _ in properties(schema, chart.values)}

    assert [path for path, inner in known.items() if not inner.get("description", "").endswith(".")] == []
    assert set(chart.values) <= set(known)
    for path, inner, value in properties(schema, chart.values):
        if "properties" in inner:
            assert inner["additionalProperties"] is False, path
            assert set(value or {}) <= set(inner["properties"]), path  # type: ignore[call-overload]


def test_the_definition_is_the_generated_one_and_is_kept(chart: Chart) -> None:
    generated = [custom_resource_definition(each()) for each in (batches, graphs, services)]
    crds = by_kind(rendered(chart), "CustomResourceDefinition")

    for crd, wanted in zip(crds, generated, strict=True):
        assert crd["spec"] == wanted["spec"]
        assert crd["metadata"]["annotations"] == wanted["metadata"]["annotations"]
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


@pytest.mark.parametrize(("keep", "install", "count"), [(False, True, 3), (True, False, 0)])
def test_definitions_can_be_left_out_or_go_with_the_release(
    chart: Chart, keep: bool, install: bool, count: int
) -> None:
    crds = by_kind(rendered(chart, crds={"keep": keep, "install": install}), "CustomResourceDefinition")

    assert len(crds) == count
    assert all("helm.sh/resource-policy" not in crd["metadata"]["annotations"] for crd in crds)


def aggregated(role: Json) -> bool:
    """Return whether it adds to what people may do."""
    return any("aggregate-to" in label for label in role["metadata"]["labels"])


def allowed(rules: list[Json], group: str, resource: str) -> set[str]:
    return {
        verb for rule in rules if group in rule["apiGroups"] and resource in rule["resources"] for verb in rule["verbs"]
    }


def test_the_operator_may_do_what_it_does_and_no_more(chart: Chart) -> None:
    (rules,) = (role["rules"] for role in by_kind(rendered(chart), "ClusterRole") if not aggregated(role))

    for kind in READ_CHILDREN:
        group = kind.api_version.rpartition("/")[0]
        assert {"get", "list", "watch", "create", "patch"} <= allowed(rules, group, kind.plural)
    assert allowed(rules, "serving.shoal.dev", "inferenceservices") == {"get", "list", "watch"}
    assert allowed(rules, "serving.shoal.dev", "inferenceservices/status") == {"patch"}
    assert allowed(rules, "", "secrets") == set()
    assert allowed(rules, "", "pods") == {"list", "watch", "patch"}
    slices = {"list", "watch", "create", "patch", "delete"}
    assert allowed(rules, "discovery.k8s.io", "endpointslices") == slices
    assert allowed(rules, "apps", "deployments") == {"get", "list", "watch", "create", "patch", "delete"}
    assert not any("*" in value for rule in rules for value in (*rule["verbs"], *rule["resources"]))


def test_an_operator_of_some_namespaces_has_no_right_in_the_others(chart: Chart) -> None:
    objects = installed(chart, **NAMESPACED)

    assert [role for role in by_kind(objects, "ClusterRole") if not aggregated(role)] == []
    assert by_kind(objects, "ClusterRoleBinding") == []
    namespaces = {role["metadata"]["namespace"] for role in by_kind(objects, "Role")}
    assert namespaces == {"shoal-system", "team-a", "team-b"}
    assert environment(objects)["SHOAL_OPERATOR_WATCH_NAMESPACES"] == "team-a,team-b"


def test_installs_of_some_namespaces_share_nothing_but_the_definition(chart: Chart) -> None:
    def names(namespace: str) -> set[tuple[str, str, str]]:
        files = chart.render(
            values=with_images({"watchNamespaces": [f"{namespace}-models"]}), name="shoal", namespace=namespace
        )
        texts = [text for path, text in files.items() if not path.endswith("NOTES.txt")]
        found = [body for text in texts for body in yaml.safe_load_all(text) if body]
        return {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in found}

    assert {kind for kind, _, _ in names("one") & names("two")} == {"CustomResourceDefinition"}


def lease_verbs(objects: list[Json], namespace: str, name: str) -> set[str]:
    """Return what may be done to a Lease."""
    rules = [r for o in by_kind(objects, "Role") if o["metadata"]["namespace"] == namespace for r in o["rules"]]
    named = [r for r in rules if "leases" in r["resources"] and name in r.get("resourceNames", [name])]
    return {verb for rule in named for verb in rule["verbs"]}


def test_heartbeat_lease_may_be_written_and_watched(chart: Chart) -> None:
    apart, beside = rendered(chart, **NAMESPACED), rendered(chart, watchNamespaces=["team-a", "shoal-system"])

    assert {"create", "patch", "list", "watch"} <= lease_verbs(apart, "team-a", "shoal-operator-heartbeat")
    assert lease_verbs(apart, "team-b", "shoal-operator-heartbeat") == {"list", "watch"}
    assert "create" not in lease_verbs(apart, "team-a", "shoal-operator")
    assert {"get", "update", "list", "watch"} <= lease_verbs(beside, "shoal-system", "shoal-operator")
    assert "patch" not in lease_verbs(beside, "team-a", "shoal-operator-heartbeat")


def test_the_operator_understands_the_environment_that_it_is_given(chart: Chart) -> None:
    given = environment(rendered(chart, **FULL))
    settings = Settings.from_env(
        {name: re.sub(r"(?<!\$)\$\(POD_IP\)", "10.0.0.5", text) for name, text in given.items()}
    )

    assert settings.process.proxy_image == f"shoal/proxy:{VERSION}"
    assert (settings.logging.form, settings.process.pod_log_format) == ("json", "json")
    assert settings.process.admin_namespaces == ("shoal-system", "monitoring")
    # The kubelet turns $$( into $(, so that the operator's own address is not put in.
    assert settings.process.listen_host == "$$(POD_IP)"
    assert str(settings.process.health_listen) == "10.0.0.5:8081"


def test_the_activator_understands_its_environment_and_the_operator_finds_it(chart: Chart) -> None:
    ports = {"first": 30000, "count": 7}
    objects = rendered(chart, podListenHost="$(POD_IP)", activator={"ports": ports}, logFormat="json")
    given = {name: text.replace("$(POD_IP)", "10.0.0.5") for name, text in environment(objects, "activator").items()}
    operator = environment(objects)
    selected = dict(pair.split("=") for pair in operator["SHOAL_OPERATOR_ACTIVATOR_SELECTOR"].split(","))
    activator_deployment = next(
        body for body in by_kind(objects, "Deployment") if body["metadata"]["name"] == "shoal-activator"
    )
    policy = next(body for body in by_kind(objects, "NetworkPolicy") if "activator" in body["metadata"]["name"])
    (service,) = by_kind(objects, "Service")

    activator = activator_environment(given)
    assert given["SHOAL_LOG_FORMAT"] == "json"
    assert (activator.listen_host, str(activator.admin_listen)) == ("10.0.0.5", "10.0.0.5:9090")
    assert (
        activator.operator
        == f"http://{service['metadata']['name']}.shoal-system.svc:{service['spec']['ports'][0]['port']}"
    )
    assert selected.items() <= activator_deployment["spec"]["template"]["metadata"]["labels"].items()
    ports = policy["spec"]["ingress"][0]["ports"][0]
    first, count = int(operator["SHOAL_OPERATOR_ACTIVATOR_FIRST_PORT"]), int(operator["SHOAL_OPERATOR_ACTIVATOR_PORTS"])
    assert (ports["port"], ports["endPort"]) == (first, first + count - 1) == (30000, 30006)


def activator_environment(given: dict[str, str]) -> ActivatorProcess:
    class Only(Struct):
        process: ActivatorProcess

    return read(Only, given, ACTIVATOR).process


def test_disabled_activator_is_not_rendered_nor_configured(chart: Chart) -> None:
    objects = rendered(chart, activator={"enabled": False})

    assert [body["metadata"]["name"] for body in by_kind(objects, "Deployment")] == ["shoal-operator"]
    assert "SHOAL_OPERATOR_ACTIVATOR_SELECTOR" not in environment(objects)


@pytest.mark.parametrize("images", [{}, {"operator": {"repository": "registry.example.com/operator"}}])
def test_without_a_registry_of_the_images_the_chart_refuses_and_names_the_value(chart: Chart, images: Json) -> None:
    with pytest.raises(HelmError, match=r"--set images\.registry="):
        chart.render(values={"images": images}, name="shoal", namespace="shoal-system")


def test_a_repository_of_one_image_wins_over_the_registry(chart: Chart) -> None:
    objects = rendered(chart, images={"registry": "r.example.com/a", "proxy": {"repository": "p.example.com/b"}})

    assert container_of(objects)["image"] == f"r.example.com/a/operator:{VERSION}"
    assert environment(objects)["SHOAL_OPERATOR_PROXY_IMAGE"] == f"p.example.com/b:{VERSION}"
    assert environment(objects)["SHOAL_OPERATOR_RUNTIME_IMAGE"] == f"r.example.com/a/runtime:{VERSION}"


def test_an_image_is_named_by_its_digest_when_there_is_one(chart: Chart) -> None:
    container = container_of(rendered(chart, **FULL))

    assert container["image"] == "shoal/operator@sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"replica": 2}, "replica"),
        ({"policy": {"secret": ["*"]}}, "secret"),
        ({"policy": {"secrets": "*"}}, "policy"),
        ({"policy": {"images": None}}, "images"),
        ({"env": [{"name": "SHOAL_OPERATOR_POLICY", "value": "{}"}]}, "/env/0/name"),
        ({"env": [{"name": "SHOAL_OPERATOR_WORKRES", "value": "1"}]}, "/env/0/name"),
        ({"replicas": "2"}, "replicas"),
        ({"replicas": 50}, "replicas"),
        ({"images": {"operator": {"digest": "latest"}}}, "digest"),
        ({"images": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"watchNamespaces": ["Team A"]}, "watchNamespaces"),
        ({"crds": {"installed": False}}, "installed"),
        ({"networkPolicies": {"operator": {"ports": []}}}, "/networkPolicies/operator/ports"),
        ({"networkPolicies": {"operator": {"ports": ["https"]}}}, "/networkPolicies/operator/ports/0"),
        ({"networkPolicies": {"activator": {"ingress": []}}}, "ingress"),
        ({"podDisruptionBudget": {"maxUnavailable": 2}}, "maxUnavailable"),
        ({"userRoles": {"create": "yes"}}, "/userRoles/create"),
        ({"tests": {"timeoutSeconds": 1}}, "/tests/timeoutSeconds"),
        ({"images": {"pullSecrets": ["registry"]}}, "/images/pullSecrets/0"),
        ({"resources": {"limits": {"memory": {}}}}, "/resources/limits/memory"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name is required"),
        ({"activator": {"ports": {"first": 65000, "count": 537}}}, "exceeds port 65535"),
        (
            {"activator": {"env": [{"name": "SHOAL_PROXY_DOCS", "value": "true"}]}},
            "SHOAL_PROXY_DOCS is not a setting of",
        ),
        ({"activator": {"env": [{"name": "SHOAL_WAITNG_X", "value": "1"}]}}, "begin with SHOAL_ACTIVATOR_"),
    ],
)
def test_wrong_values_are_refused_and_named(chart: Chart, values: Json, words: str) -> None:
    with pytest.raises(HelmError, match=words):
        rendered(chart, **values)


def test_settings_that_are_no_values_may_be_given_as_environment(chart: Chart) -> None:
    set_by_values = environment(rendered(chart, **FULL, watchNamespaces=["team-a"])).keys()
    own = {name for name in variables() if name.startswith("SHOAL_OPERATOR_")} - set_by_values
    given = [{"name": name, "value": "1"} for name in sorted(own)]

    assert environment(rendered(chart, env=given)).keys() >= own


@pytest.mark.parametrize(
    "ports", [{"first": 65000, "count": 536}, {"first": 9091, "count": 9}, {"first": 1024, "count": 8066}]
)
def test_all_ports_up_to_the_last_one_can_be_the_activators(chart: Chart, ports: Json) -> None:
    given = [{"name": "SHOAL_ACTIVATOR_MAX_REQUESTS", "value": "5"}, {"name": "SHOAL_LOG_LEVEL", "value": "info"}]
    objects = rendered(chart, activator={"ports": ports, "env": [*given, {"name": "TZ", "value": "UTC"}]})

    assert environment(objects, "activator").items() >= {(each["name"], each["value"]) for each in given}
    [policy] = [each for each in by_kind(objects, "NetworkPolicy") if "activator" in each["metadata"]["name"]]
    assert policy["spec"]["ingress"][0]["ports"][0]["endPort"] == ports["first"] + ports["count"] - 1
    known = {name: text.replace("$(POD_IP)", "10.0.0.1") for name, text in environment(objects).items()}
    assert Settings.from_env(known).process.activator_ports == ports["count"]


def test_notes_warn_about_services_at_zero_without_an_activator(chart: Chart) -> None:
    for enabled in (True, False):
        values = with_images({"activator": {"enabled": enabled}})
        files = chart.render(values=values, name="shoal", namespace="shoal-system")
        (notes,) = (text for path, text in files.items() if path.endswith("NOTES.txt"))
        assert ("Set their minReplicas to 1" in notes) is not enabled


def test_ports_of_the_activator_are_ports(chart: Chart) -> None:
    with pytest.raises(HelmError, match="exceeds port 65535"):
        rendered(chart, activator={"ports": {"first": 65000, "count": 1000}})


def deployment(objects: list[Json], name: str) -> Json:
    return next(body for body in by_kind(objects, "Deployment") if body["metadata"]["name"] == f"shoal-{name}")


@pytest.mark.parametrize("name", ["operator", "activator"])
def test_pods_of_one_kind_prefer_different_nodes_unless_the_values_say_otherwise(chart: Chart, name: str) -> None:
    made = deployment(rendered(chart, affinity={"nodeAffinity": {"a": []}}), name)["spec"]
    own: Json = {"preferredDuringSchedulingIgnoredDuringExecution": []}
    reported = deployment(rendered(chart, affinity={"podAntiAffinity": own}), name)["spec"]["template"]["spec"]

    affinity = made["template"]["spec"]["affinity"]
    [term] = affinity["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert term["podAffinityTerm"]["labelSelector"] == made["selector"]
    assert affinity["nodeAffinity"] == {"a": []}
    assert reported["affinity"]["podAntiAffinity"] == own


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({}, {"shoal-activator"}),
        ({"replicas": 2}, {"shoal-operator", "shoal-activator"}),
        ({"replicas": 2, "activator": {"enabled": False}}, {"shoal-operator"}),
        ({"replicas": 2, "podDisruptionBudget": {"enabled": False}}, set()),
    ],
)
def test_a_budget_is_for_those_of_which_there_are_several(chart: Chart, values: Json, names: set[str]) -> None:
    objects = rendered(chart, **values)
    budgets = {body["metadata"]["name"]: body["spec"] for body in by_kind(objects, "PodDisruptionBudget")}

    assert budgets.keys() == names
    for name, spec in budgets.items():
        assert spec["selector"] == deployment(objects, name.removeprefix("shoal-"))["spec"]["selector"]


def test_activator_has_no_account_at_the_api_server(chart: Chart) -> None:
    pod = deployment(rendered(chart), "activator")["spec"]["template"]["spec"]

    assert pod["serviceAccountName"] == "shoal-activator"
    assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize("enabled", [True, False])
def test_the_notes_name_the_next_command(chart: Chart, enabled: bool) -> None:
    values = with_images({"watchNamespaces": ["team-a"], "tests": {"enabled": enabled}})
    files = chart.render(values=values, name="ours", namespace="there")
    (notes,) = (text for path, text in files.items() if path.endswith("NOTES.txt"))

    assert ("helm test ours --namespace there" in notes) is enabled
    assert "kubectl --namespace team-a apply --filename -" in notes
    [example] = yaml.safe_load_all(notes.partition("<<EOF\n")[2].partition("EOF\n")[0])
    assert parse_spec(example).model.uri


def test_how_services_are_upgraded_is_reported_to_the_operator(chart: Chart) -> None:
    reported = environment(rendered(chart, upgrade={"maxUnavailableServices": 0, "window": "Sat,Sun 02:00-05:00 UTC"}))

    assert reported["SHOAL_OPERATOR_UPGRADE_UNAVAILABLE_SERVICES"] == "0"
    assert reported["SHOAL_OPERATOR_UPGRADE_WINDOW"] == "Sat,Sun 02:00-05:00 UTC"
    for window in ("Sat", "Sat 25:00-05:00", "02:00-05:00 CET"):
        with pytest.raises(HelmError, match="window"):
            rendered(chart, upgrade={"window": window})


def test_the_policy_of_the_chart_is_the_operators_default_and_reaches_it_as_it_is_written(chart: Chart) -> None:
    def policy(**values: Json) -> Policy:
        text = environment(rendered(chart, **values))["SHOAL_OPERATOR_POLICY"]
        return Settings.from_env({"SHOAL_OPERATOR_POLICY": text.replace("$$(", "$(")}).process.policy

    assert policy() == Policy()
    hosts = ["*.$(NAMESPACE).example.com", 'a&<b>"c']
    assert policy(policy={"hosts": hosts, "root": True}) == Policy(hosts=tuple(hosts), root=True)


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_the_charts_own_pods_are_admitted_where_clusters_are_strict(chart: Chart, values: Json) -> None:
    objects = rendered(chart, **values)
    pods = [body["spec"] for body in by_kind(objects, "Pod")]
    pods += [body["spec"]["template"]["spec"] for kind in ("Deployment", "Job") for body in by_kind(objects, kind)]

    assert pods
    for pod in pods:
        assert refused_by_restricted(pod) == refused_by_restricted_v2(pod) == []


def test_a_group_of_volumes_is_reported_to_the_operator_only_where_one_is_given(chart: Chart) -> None:
    assert "SHOAL_OPERATOR_POD_FS_GROUP" not in environment(rendered(chart))
    reported = environment(rendered(chart, podFsGroup=1_000_620_000))
    assert Settings.from_env(
        {"SHOAL_OPERATOR_POD_FS_GROUP": reported["SHOAL_OPERATOR_POD_FS_GROUP"]}
    ).process.pod_fs_group
    with pytest.raises(HelmError, match="podFsGroup"):
        rendered(chart, podFsGroup=0)
