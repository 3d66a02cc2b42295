"""The pod: settings of each container, and how it stops."""

import dataclasses
import json
import re
from decimal import Decimal

import pytest
from msgspec import structs

from shoal_operator.children.drift import quantity
from shoal_operator.manifests.containers import make_model, make_proxy, make_runtime
from shoal_operator.manifests.deployment import make_deployment
from shoal_operator.manifests.labels import HASH_ANNOTATION, TEMPLATE_HASH_ANNOTATION
from shoal_operator.manifests.policies import make_network_policy
from shoal_operator.manifests.route import service_url
from shoal_operator.manifests.service import make_service
from shoal_operator.manifests.stop_times import stop_time_s
from shoal_schema.fields.declaring import Json
from tests.operator.samples import (
    DOWNLOADED,
    EVERYTHING,
    FOREIGN,
    GRAPH,
    MINIMAL,
    graph,
    graph_target,
    target,
    with_fields,
)


def env(container: Json) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}


def test_settings_reach_the_containers_they_are_for() -> None:
    proxy, runtime = env(make_proxy(target(EVERYTHING))), env(make_runtime(target(EVERYTHING)))

    assert proxy["SHOAL_BATCHING_MAX_BATCH_SIZE"] == runtime["SHOAL_BATCHING_MAX_BATCH_SIZE"] == "16"
    assert proxy["SHOAL_QUEUE_MAX_ROWS"] == "64"
    assert proxy["SHOAL_PROXY_FORWARD_HEADERS"] == "authorization,x-tenant"
    assert "SHOAL_QUEUE_MAX_ROWS" not in runtime
    assert runtime["SHOAL_RUNTIME_DEVICE"] == "cuda"
    assert runtime["SHOAL_RUNTIME_DTYPE"] == "bfloat16"
    assert runtime["SHOAL_RUNTIME_COMPILE"] == "true"
    assert runtime["SHOAL_BATCHING_ALLOWED_BATCH_SIZES"] == "1,4,16"
    assert runtime["SHOAL_MODEL_PARAMETERS"] == '{"labels":["cat","dog"],"top":5}'


def expanded(text: str, known: dict[str, str]) -> str:
    """Return what a kubelet makes of a variable's value."""

    def replacement(match: re.Match[str]) -> str:
        found = match[0]
        return "$" if found == "$$" else known.get(found[2:-1], found)

    return re.sub(r"\$\$|\$\([A-Za-z0-9_.-]+\)", replacement, text)


@pytest.mark.parametrize("text", ["$(HOME)", "$$", "$$(HOME)", "$", "a$b", "$(", "${HOME}", "$(SHOAL_MODEL_NAME)$"])
def test_what_a_spec_says_with_dollars_arrives_as_it_was_written(text: str) -> None:
    spec = with_fields(MINIMAL, model={"uri": f"file:///models/{text}", "parameters": {"prompt": text}})
    written = env(make_runtime(target(spec)))
    known = {"HOME": "/root", "SHOAL_MODEL_NAME": "cat"}

    assert expanded(written["SHOAL_MODEL_URI"], known) == f"file:///models/{text}"
    assert json.loads(expanded(written["SHOAL_MODEL_PARAMETERS"], known)) == {"prompt": text}


@pytest.mark.parametrize("text", ["$(HOME)", "$$", "cost$"])
def test_a_graph_with_dollars_arrives_as_it_was_written(text: str) -> None:
    outputs = {text: ["first.label"]}
    made = graph_target(graph(with_fields(GRAPH, outputs=outputs)))
    variables = env(make_proxy(made))

    assert list(json.loads(expanded(variables["SHOAL_PROXY_GRAPH"], {"HOME": "/root"}))["outputs"]) == [text]


def test_what_is_handed_to_kubernetes_keeps_the_references_of_kubernetes() -> None:
    given = {**FOREIGN["runtime"], "args": ["--port=$(PORT)"], "env": [{"name": "PORT", "value": "$$8000"}]}
    runtime = make_runtime(target(with_fields(FOREIGN, runtime=given)))

    assert (runtime["args"], runtime["env"][0]["value"]) == (["--port=$(PORT)"], "$$8000")


def test_both_ends_of_the_socket_agree() -> None:
    proxy, runtime = env(make_proxy(target())), env(make_runtime(target()))

    assert proxy["SHOAL_PROXY_RUNTIME"] == runtime["SHOAL_RUNTIME_LISTEN"]


def test_a_users_variable_replaces_ours() -> None:
    assert env(make_runtime(target(EVERYTHING)))["HOME"] == "/home/cat"


def test_a_bound_without_a_field_is_set_by_the_proxys_own_variables() -> None:
    bound = {"name": "SHOAL_PROXY_MAX_HEAD_BYTES", "value": "4096"}
    service = target(with_fields(MINIMAL, proxy={"env": [bound]}))

    assert env(make_proxy(service))["SHOAL_PROXY_MAX_HEAD_BYTES"] == "4096"
    assert "SHOAL_PROXY_MAX_HEAD_BYTES" not in env(make_runtime(service))


def test_a_downloaded_model_is_fetched_by_an_init_container_into_the_cache_that_the_runtime_reads() -> None:
    model, runtime = make_model(target(DOWNLOADED)), make_runtime(target(DOWNLOADED))

    for name in ("SHOAL_MODEL_URI", "SHOAL_MODEL_CHECKSUM", "SHOAL_MODEL_CACHE_DIR"):
        assert env(model)[name] == env(runtime)[name]
    assert model["volumeMounts"][0] in runtime["volumeMounts"]


def test_a_model_file_needs_no_init_container() -> None:
    pod = make_deployment(target(MINIMAL))["spec"]["template"]["spec"]

    assert "initContainers" not in pod


def test_foreign_runtime_is_called_over_tcp_without_shoals_settings() -> None:
    proxy, runtime = make_proxy(target(FOREIGN)), make_runtime(target(FOREIGN))

    assert env(proxy)["SHOAL_PROXY_RUNTIME"] == "http://localhost:8000"
    assert runtime["env"] == []
    assert runtime["args"] == ["--model-repository=/models"]
    assert runtime["livenessProbe"]["httpGet"]["port"] == 8000


@pytest.mark.parametrize("spec", [MINIMAL, DOWNLOADED, FOREIGN, with_fields(MINIMAL, queue={"maxBytes": 2**40})])
def test_a_quota_on_requests_and_limits_admits_the_pod_once_the_runtime_has_its_own(spec: Json) -> None:
    asked = {"cpu": "2", "memory": "4Gi"}
    given = with_fields(spec, runtime__resources={"requests": asked, "limits": asked})
    pod = make_deployment(target(given))["spec"]["template"]["spec"]

    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        resources = container["resources"]
        for name in ("cpu", "memory"):
            assert quantity(resources["requests"][name]) <= quantity(resources["limits"][name]), container["name"]


def test_a_queue_that_holds_more_gives_the_proxy_more_memory() -> None:
    def limit(queue_bytes: int) -> Decimal:
        return quantity(
            make_proxy(target(with_fields(MINIMAL, queue={"maxBytes": queue_bytes})))["resources"]["limits"]["memory"]
        )

    assert limit(2**28) > 4 * 2**28
    assert limit(2**34) > 4 * 2**34


def test_resources_that_are_given_replace_the_defaults_of_their_container() -> None:
    given = {"requests": {"memory": "1Gi"}}
    spec = with_fields(DOWNLOADED, model__resources=given, proxy={"resources": given})

    assert make_model(target(spec))["resources"] == make_proxy(target(spec))["resources"] == given


def test_the_pod_may_take_as_long_to_stop_as_its_containers() -> None:
    stopping = target(EVERYTHING)
    runtime_s = int(env(make_runtime(stopping))["SHOAL_RUNTIME_SHUTDOWN_TIMEOUT_S"])
    grace_s = make_deployment(stopping)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]

    assert 10 + 90 < runtime_s < grace_s == stop_time_s(stopping)


def test_the_longest_drain_stays_within_the_runtimes_range() -> None:
    slow = target(with_fields(MINIMAL, rollout={"drainDelaySeconds": 600, "drainTimeoutSeconds": 3600}))

    assert env(make_runtime(slow))["SHOAL_RUNTIME_SHUTDOWN_TIMEOUT_S"] == "3600"


def test_a_gpu_tolerates_the_taint_of_its_own_name() -> None:
    pod = make_deployment(target(DOWNLOADED))["spec"]["template"]["spec"]

    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


@pytest.mark.parametrize(
    ("replicas", "wanted"),
    [(0, 2), (1, 2), (5, 5), (9, 8)],
)
def test_replicas_stay_within_the_bounds_of_scaling(replicas: int, wanted: int) -> None:
    scaled = target(with_fields(EVERYTHING, replicas=replicas))

    assert make_deployment(scaled)["spec"]["replicas"] == wanted


def test_externally_scaled_replicas_are_kept() -> None:
    spec = with_fields(MINIMAL, replicas=0, scaling={"mode": "External", "minReplicas": 2, "maxReplicas": 4})

    assert make_deployment(target(spec))["spec"]["replicas"] == 0


def test_service_without_scaling_may_have_zero_replicas() -> None:
    assert make_deployment(target(with_fields(MINIMAL, replicas=0)))["spec"]["replicas"] == 0


def test_more_replicas_leave_the_template_as_it_is() -> None:
    one = make_deployment(target(MINIMAL))
    two = make_deployment(target(with_fields(MINIMAL, replicas=2)))

    assert one["spec"]["template"] == two["spec"]["template"]
    assert one["metadata"]["annotations"][HASH_ANNOTATION] != two["metadata"]["annotations"][HASH_ANNOTATION]


def test_a_new_setting_makes_a_new_template() -> None:
    def template_hash(spec: Json) -> str:
        template = make_deployment(target(spec))["spec"]["template"]
        return str(template["metadata"]["annotations"][TEMPLATE_HASH_ANNOTATION])

    assert template_hash(MINIMAL) != template_hash(with_fields(MINIMAL, batching__maxBatchSize=8))


def test_users_labels_never_replace_those_that_select_the_pods() -> None:
    spec = with_fields(MINIMAL, pod={"labels": {"serving.shoal.dev/inferenceservice": "dog", "team": "x"}})
    template = make_deployment(target(spec))["spec"]["template"]

    assert template["metadata"]["labels"]["serving.shoal.dev/inferenceservice"] == "cat"
    assert template["metadata"]["labels"]["team"] == "x"


def test_the_admin_port_is_open_to_all_when_the_operator_is_outside() -> None:
    rule = make_network_policy(target())["spec"]["ingress"][1]

    assert rule == {"ports": [{"protocol": "TCP", "port": 9090}]}


@pytest.mark.parametrize(
    ("route", "url"),
    [
        (None, "http://cat.default.svc"),
        ({"ingress": {"host": "a.example.com"}}, "http://a.example.com"),
        ({"ingress": {"host": "a.example.com", "tlsSecretName": "a"}}, "https://a.example.com"),
        ({"httpRoute": {"parentRefs": [{"name": "g"}], "hostnames": ["b.example.com"]}}, "http://b.example.com"),
        ({"httpRoute": {"parentRefs": [{"name": "g"}]}}, "http://cat.default.svc"),
        ({"ingress": {"host": "*.example.com"}}, "http://cat.example.com"),
        ({"httpRoute": {"parentRefs": [{"name": "g"}], "hostnames": ["*.b.example"]}}, "http://cat.b.example"),
        (
            {"httpRoute": {"parentRefs": [{"name": "g"}], "hostnames": ["*.b.example", "c.example"]}},
            "http://c.example",
        ),
        (
            {"httpRoute": {"parentRefs": [{"name": "g"}], "hostnames": ["b.example"], "scheme": "HTTPS"}},
            "https://b.example",
        ),
        ({"httpRoute": {"parentRefs": [{"name": "g", "port": 443}], "hostnames": ["b.example"]}}, "https://b.example"),
        (
            {"httpRoute": {"parentRefs": [{"name": "g", "sectionName": "https"}], "hostnames": ["b.example"]}},
            "https://b.example",
        ),
        (
            {
                "httpRoute": {
                    "parentRefs": [{"name": "g", "sectionName": "https"}],
                    "hostnames": ["b.example"],
                    "scheme": "HTTP",
                }
            },
            "http://b.example",
        ),
    ],
)
def test_url_is_the_address_for_clients(route: Json | None, url: str) -> None:
    assert service_url(target(with_fields(MINIMAL, route=route))) == url


@pytest.mark.parametrize(
    ("address", "url"), [("", ""), ("127.1.2.3", "http://127.1.2.3"), ("fd00::1", "http://[fd00::1]")]
)
def test_where_names_are_not_known_the_url_is_the_services_address(address: str, url: str) -> None:
    made = target()
    defaults = structs.replace(made.defaults, service_url="http://$(CLUSTER_IP)")

    assert service_url(dataclasses.replace(made, defaults=defaults), address) == url


def test_kubectl_shows_what_the_model_says_unless_the_user_prefers_another_container() -> None:
    def shown(spec: Json) -> object:
        annotations = make_deployment(target(spec))["spec"]["template"]["metadata"]["annotations"]
        return annotations["kubectl.kubernetes.io/default-container"]

    assert shown(MINIMAL) == "runtime"
    chosen = {"kubectl.kubernetes.io/default-container": "proxy"}
    assert shown(with_fields(MINIMAL, pod={"annotations": chosen})) == "proxy"


def test_the_container_that_takes_longest_to_be_ready_starts_first() -> None:
    pod = make_deployment(target(MINIMAL))["spec"]["template"]["spec"]

    assert [container["name"] for container in pod["containers"]] == ["runtime", "proxy"]


def test_startup_probe_delays_other_probes_but_not_readiness() -> None:
    proxy = make_proxy(target(MINIMAL))
    startup, readiness, liveness = (proxy[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness"))

    assert startup["httpGet"]["path"] == liveness["httpGet"]["path"] == "/healthz"
    # The shortest delay: readiness waits for the startup probe. It fails as late as liveness would.
    assert startup["initialDelaySeconds"] == startup["periodSeconds"] == 1
    assert startup["failureThreshold"] * startup["periodSeconds"] == (
        liveness["failureThreshold"] * liveness["periodSeconds"]
    )
    assert readiness["httpGet"]["path"] == "/readyz?wait_ms=2000"


def test_containers_of_the_spec_come_after_ours_and_keep_the_restricted_default_but_where_they_say_otherwise() -> None:
    pod = make_deployment(target(EVERYTHING))["spec"]["template"]["spec"]
    (tunnel,), audit = pod["initContainers"], pod["containers"][-1]

    assert [each["name"] for each in pod["containers"]] == ["runtime", "proxy", "audit"]
    for container in (tunnel, audit):
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert audit["securityContext"]["runAsUser"] == 1002


def test_what_brings_credentials_starts_before_the_download_which_has_the_runtimes_mounts() -> None:
    mount = {"name": "keys", "mountPath": "/keys"}
    before = {"initContainers": [{"name": "tunnel", "image": "tunnel:1"}], "volumes": [{"name": "keys"}]}
    made = make_deployment(target(with_fields(DOWNLOADED, pod=before, runtime__volumeMounts=[mount])))
    pod = made["spec"]["template"]["spec"]

    assert [each["name"] for each in pod["initContainers"]] == ["tunnel", "model"]
    assert mount in pod["initContainers"][1]["volumeMounts"]
    assert mount in pod["containers"][0]["volumeMounts"]
    assert mount not in pod["containers"][1]["volumeMounts"]


def test_shared_memory_has_the_bound_that_is_given() -> None:
    def shm(spec: Json) -> Json:
        volumes = make_deployment(target(spec))["spec"]["template"]["spec"]["volumes"]
        return dict(next(each["emptyDir"] for each in volumes if each["name"] == "shm"))

    assert shm(MINIMAL) == {"medium": "Memory"}
    assert shm(with_fields(MINIMAL, runtime={"sharedMemory": "1Gi"})) == {"medium": "Memory", "sizeLimit": "1Gi"}


def test_the_service_has_its_own_annotation_beside_a_users() -> None:
    given = {"type": "NodePort", "annotations": {"a/b": "c"}}
    service = make_service(target(with_fields(MINIMAL, service=given)))

    assert service["spec"]["type"] == "NodePort"
    assert service["metadata"]["annotations"].items() >= {"a/b": "c", "serving.shoal.dev/operator": "default"}.items()


def test_asynchronous_requests_configure_the_proxy_only() -> None:
    store = {"uri": "s3://results/cat", "secretName": "shoal-results"}
    webhooks = {"allowedHosts": ["hooks.example.com"], "secretName": "shoal-hooks"}
    asked = target(with_fields(MINIMAL, asynchronous={"store": store, "webhooks": webhooks, "maxBytes": 1 << 30}))
    proxy, plain = make_proxy(asked), make_proxy(target(MINIMAL))

    assert env(proxy)["SHOAL_ASYNC_TIMEOUT_S"] == "3600"
    assert env(proxy)["SHOAL_ASYNC_STORE"] == "s3://results/cat"
    assert env(proxy)["SHOAL_PROXY_WEBHOOK_KEYS"] == "/var/run/shoal/webhook-keys"
    assert proxy["envFrom"] == [{"secretRef": {"name": "shoal-results"}}]
    assert {"name": "webhook-keys", "mountPath": "/var/run/shoal/webhook-keys", "readOnly": True} in proxy[
        "volumeMounts"
    ]
    # The held bodies and results, and webhooks that outlive them, are beside the queue's memory.
    memory = [int(each["resources"]["limits"]["memory"].removesuffix("Mi")) for each in (proxy, plain)]
    assert memory[0] - memory[1] == 2048
    assert "envFrom" not in plain
    assert not [name for name in env(plain) if name.startswith("SHOAL_ASYNC_")]
    spec = make_deployment(asked)["spec"]["template"]["spec"]
    assert {"name": "webhook-keys", "secret": {"secretName": "shoal-hooks"}} in spec["volumes"]


def test_a_candidate_accepts_and_continues_no_asynchronous_requests() -> None:
    store = {"uri": "s3://results/cat", "secretName": "shoal-results"}
    asked = target(with_fields(MINIMAL, asynchronous={"store": store}))
    candidate = make_proxy(dataclasses.replace(asked, candidate_replicas=1))

    assert not [name for name in env(candidate) if name.startswith("SHOAL_ASYNC_")]
    assert "envFrom" not in candidate


def test_api_keys_are_mounted_in_the_proxy_only_and_required() -> None:
    asked = target(with_fields(MINIMAL, access={"apiKeys": {"secretName": "callers"}}))
    spec = make_deployment(asked)["spec"]["template"]["spec"]
    [volume] = [each for each in spec["volumes"] if each["name"] == "api-keys"]

    assert volume["secret"] == {"secretName": "callers"}  # not optional, by default
    mounts = {each["name"]: [m for m in each["volumeMounts"] if m["name"] == "api-keys"] for each in spec["containers"]}
    assert mounts["runtime"] == []
    assert mounts["proxy"] == [{"name": "api-keys", "mountPath": "/var/run/shoal/api-keys", "readOnly": True}]
    assert env(make_proxy(asked))["SHOAL_PROXY_API_KEYS"] == "/var/run/shoal/api-keys"
    assert "SHOAL_PROXY_API_KEYS" not in env(make_proxy(target(MINIMAL)))


@pytest.mark.parametrize(
    ("runtime", "instances"),
    [
        ({}, None),
        ({"resources": {"limits": {"nvidia.com/gpu": 1}}}, None),
        ({"resources": {"limits": {"nvidia.com/gpu": "4"}}}, "4"),
        ({"resources": {"limits": {"nvidia.com/gpu": 4}}, "instances": 1}, None),
        ({"resources": {"limits": {"nvidia.com/gpu": 4}}, "device": "CPU"}, None),
        ({"instances": 2}, "2"),
    ],
)
def test_a_pod_has_one_runtime_per_gpu_unless_the_spec_says_otherwise(runtime: Json, instances: str | None) -> None:
    made = target(with_fields(MINIMAL, runtime=runtime))
    runtime_count, proxy_count = (
        env(make_runtime(made)).get("SHOAL_RUNTIME_INSTANCES"),
        env(make_proxy(made)).get("SHOAL_PROXY_RUNTIME_INSTANCES"),
    )

    assert proxy_count == instances
    assert runtime_count == (instances or ("1" if "instances" in runtime else None))
