"""The CRD: it is a valid one, its defaults are the model's, and its rules say what they should."""

import re
from collections.abc import Iterator
from typing import Any

import cel
import kubernetes_validate
import pytest

from shoal_schema.decoding import parse_spec
from shoal_schema.fields.declaring import Json, SettingsSection, element_of, fields_of, section_of
from shoal_schema.publishing.crd import custom_resource_definition
from shoal_schema.resource.service import InferenceServiceSpec
from tests.operator.samples import BY_HPA, BY_KEDA, DOWNLOADED, EVERYTHING, FOREIGN, MINIMAL, service, with_fields


def root_schema() -> Json:
    schema: Json = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def defaulted(schema: Json, value: Any) -> Any:
    """Fill in defaults as an API server does."""
    if schema.get("type") == "array" and isinstance(value, list):
        return [defaulted(schema["items"], item) for item in value]
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    for name, part in schema.get("properties", {}).items():
        if name not in filled and "default" in part:
            filled[name] = part["default"]
        if name in filled:
            filled[name] = defaulted(part, filled[name])
    return filled


def broken_rules(schema: Json, value: Any) -> list[str]:
    """Return the messages of the CEL rules that a value breaks."""
    rules = schema.get("x-kubernetes-validations", [])
    broken = [rule["message"] for rule in rules if not cel.evaluate(rule["rule"], {"self": value})]
    if isinstance(value, dict):
        for name, part in schema.get("properties", {}).items():
            broken += broken_rules(part, value[name]) if name in value else []
    if isinstance(value, list):
        for element in value:
            broken += broken_rules(schema.get("items", {}), element)
    return broken


def refused(spec: Json) -> list[str]:
    schema = root_schema()["properties"]["spec"]
    return broken_rules(schema, defaulted(schema, spec))


def test_the_definition_passes_the_strict_schema_of_kubernetes() -> None:
    kubernetes_validate.validate(custom_resource_definition(), "1.37", strict=True)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(MINIMAL, id="minimal"),
        pytest.param(with_fields(MINIMAL, scaling={"minReplicas": 0, "maxReplicas": 2}), id="to zero"),
        pytest.param(EVERYTHING, id="everything"),
        pytest.param(DOWNLOADED, id="downloaded"),
        pytest.param(BY_HPA, id="hpa"),
        pytest.param(BY_KEDA, id="keda"),
        pytest.param(FOREIGN, id="foreign"),
    ],
)
def test_good_specs_break_no_rule(spec: Json) -> None:
    assert refused(spec) == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            with_fields(MINIMAL, scaling={"minReplicas": 3, "maxReplicas": 2}),
            "minReplicas must not exceed",
        ),
        (
            with_fields(MINIMAL, scaling={"minReplicas": 0, "maxReplicas": 2}, proxy={"grpcPort": 8081}),
            "minReplicas must be at least 1 with proxy.grpcPort",
        ),
        (
            with_fields(MINIMAL, scaling={"maxReplicas": 2, "targetQueueDepth": 1000}, queue={"maxRows": 64}),
            "queue.maxRows + (batching.inFlight + 1) * batching.maxBatchSize",
        ),
        (
            with_fields(MINIMAL, scaling={"maxReplicas": 2, "targetQueueDepth": 1024 + 65}),
            "queue.maxRows + (batching.inFlight + 1) * batching.maxBatchSize",
        ),
        (
            with_fields(
                MINIMAL, batching={"maxBatchSize": 300}, scaling={"maxReplicas": 2, "targetQueueDepth": 6 * 300 + 1}
            ),
            "queue.maxRows + (batching.inFlight + 1) * batching.maxBatchSize",
        ),
        (with_fields(BY_HPA, scaling__mode="Internal"), "external requires mode External"),
        *(
            (
                with_fields(
                    MINIMAL, tls={"secretName": "pair", name: "one"}, access={"apiKeys": {"secretName": "one"}}
                ),
                f"access.apiKeys and tls.{name} must name different Secrets",
            )
            for name in ("secretName", "clientCaSecretName")
        ),
        (with_fields(BY_KEDA, scaling__minReplicas=0), "minReplicas must be at least 1 with mode External"),
        (
            with_fields(MINIMAL, scaling={"mode": "External", "minReplicas": 0, "maxReplicas": 2}),
            "minReplicas must be at least 1 with mode External",
        ),
        (with_fields(BY_KEDA, scaling__targetQueueDepth=9), "targetQueueDepth requires mode Internal"),
        (
            with_fields(MINIMAL, scaling={"maxReplicas": 2, "scaleToZeroDelaySeconds": 60}),
            "scaleToZeroDelaySeconds requires minReplicas 0",
        ),
        (with_fields(BY_HPA, scaling__external={}), "horizontalPodAutoscaler and scaledObject"),
        (
            with_fields(BY_KEDA, scaling__external__horizontalPodAutoscaler={}),
            "horizontalPodAutoscaler and scaledObject",
        ),
        (with_fields(MINIMAL, rollout={"maxSurge": 0, "maxUnavailable": 0}), "cannot both be 0"),
        (
            with_fields(MINIMAL, batching__maxBatchSize=64, queue__maxRows=32),
            "queue.maxRows must hold at least one batch",
        ),
        (with_fields(MINIMAL, batching__allowedBatchSizes=[1, 8]), "the largest of allowed"),
        (with_fields(MINIMAL, batching__allowedBatchSizes=[32, 64]), "the largest of allowed"),
        (with_fields(MINIMAL, runtime__env=[{"name": "SHOAL_MODEL_URI"}]), "SHOAL_*"),
        (with_fields(MINIMAL, model__format="TorchScript", model__handler="a:B"), "model.handler requires"),
        (
            with_fields(MINIMAL, proxy__forwardHeaders=["x-a", "Content-Length"]),
            "forwardHeaders must not name",
        ),
        (with_fields(MINIMAL, proxy__grpcPort=9090), "grpcPort cannot be 8080 or 9090"),
        (with_fields(FOREIGN, proxy__grpcPort=8000), "proxy.grpcPort and runtime.port must differ"),
        (with_fields(MINIMAL, queue__fairShareHeader="Host"), "fairShareHeader must not name a header"),
        (with_fields(MINIMAL, route={}), "ingress or httpRoute"),
        (with_fields(MINIMAL, route={"httpRoute": {"parentRefs": []}}), "parentRefs"),
        *(
            (with_fields(MINIMAL, pod={"volumes": [{"name": name}]}), "volumes must not be named")
            for name in ("run", "cache", "shm", "tmp", "model")
        ),
        *(
            (with_fields(MINIMAL, pod={part: [{"name": name}]}), "containers must not be named")
            for part in ("containers", "initContainers")
            for name in ("proxy", "runtime", "model")
        ),
        (with_fields(MINIMAL, pod={"containers": [{"name": "a", "ports": [{"containerPort": 9090}]}]}), "the proxy's"),
        (
            with_fields(FOREIGN, pod={"containers": [{"name": "a", "ports": [{"containerPort": 8000}]}]}),
            "must not have the port of runtime.port",
        ),
        *(
            (with_fields(MINIMAL, runtime={"volumeMounts": [{"name": "a", "mountPath": path}]}), "/var/cache/shoal")
            for path in ("/", "//", "/run", "/run/shoal/", "/run//shoal/runtime.sock", "/dev", "/dev/shm", "/tmp/")
        ),
        *(
            (with_fields(MINIMAL, runtime={"volumeMounts": [{"name": "a", "mountPath": path}]}), "/var/cache/shoal")
            for path in ("/var", "/var/cache/", "/var/cache/shoal/models", "/data/../run/shoal", "/data/..")
        ),
        (
            with_fields(MINIMAL, model__volume={"mountPath": "/tmp", "hostPath": {"path": "/models"}}),
            "mountPath must not",
        ),
        (with_fields(MINIMAL, rollout={"minReadySeconds": 60, "progressDeadlineSeconds": 60}), "must be less than"),
        (with_fields(MINIMAL, rollout={"steps": [{"shadow": 10}]}), "requires strategy Shadow or Canary"),
        (with_fields(MINIMAL, rollout={"strategy": "Shadow", "steps": [{"weight": 5}]}), "requires strategy Canary"),
        (with_fields(MINIMAL, rollout={"strategy": "Canary", "steps": [{"rows": 5}]}), "requires shadow or weight"),
        (
            with_fields(MINIMAL, rollout={"strategy": "Canary", "steps": [{"weight": 5}, {"weight": 4}]}),
            "must not fall",
        ),
        (
            with_fields(MINIMAL, rollout={"strategy": "Canary", "steps": [{"weight": 5}, {"shadow": 50}]}),
            "must not fall",
        ),
        (with_fields(MINIMAL, rollout={"sticky": {"header": "x-user"}}), "requires strategy Canary"),
        (
            with_fields(MINIMAL, service={"annotations": {"serving.shoal.dev/claimed-by": "me"}}),
            "annotations must not begin with serving.shoal.dev/",
        ),
        (with_fields(MINIMAL, model__volume={}), "exactly one of"),
        (
            with_fields(DOWNLOADED, model__volume={"hostPath": {"path": "/models"}}),
            "no effect on a model that is downloaded",
        ),
        (with_fields(MINIMAL, model__uri=None), "model.uri is required"),
        (with_fields(MINIMAL, runtime__args=["--fast"]), "requires port"),
        (with_fields(FOREIGN, runtime__image=None), "requires runtime.image"),
        (with_fields(FOREIGN, runtime__port=8080), "runtime.port cannot be 8080 or 9090"),
        (with_fields(FOREIGN, runtime__port=9090), "runtime.port cannot be 8080 or 9090"),
        (with_fields(FOREIGN, runtime__device="CUDA"), "runtime.device has no effect"),
        (with_fields(FOREIGN, runtime__compile=True), "runtime.compile has no effect"),
        (with_fields(FOREIGN, runtime__threads=2), "runtime.threads has no effect"),
        (with_fields(FOREIGN, model__uri="file:///models"), "model.uri has no effect"),
        (with_fields(FOREIGN, model__parameters={"a": 1}), "model.parameters has no effect"),
        (with_fields(FOREIGN, batching__allowedBatchSizes=[32]), "allowedBatchSizes has no effect"),
        (with_fields(MINIMAL, model__uri="http://[::1/cat"), "model.uri must have a host"),
        (with_fields(MINIMAL, model__uri="http://[1::2::3]/cat"), "model.uri must have a host"),
        (with_fields(MINIMAL, model__uri="HTTPS://h/m"), "in lower case"),
        (with_fields(MINIMAL, model__uri="File:///m"), "in lower case"),
        (with_fields(MINIMAL, model__uri="ftp://h/m"), "model.uri must begin with one of file://"),
        (with_fields(MINIMAL, model__uri="s3://me:word@bucket/m"), "must not hold credentials or a query"),
        (with_fields(MINIMAL, model__uri="hf://team/m?token=word"), "must not hold credentials or a query"),
        (
            with_fields(MINIMAL, model__uri="models:/iris/3", model__volume={"hostPath": {"path": "/models"}}),
            "no effect on a model that is downloaded",
        ),
        (with_fields(MINIMAL, model__secretName="keys"), "no effect on a model that is not downloaded"),
        (with_fields(MINIMAL, model__uri="oci://r/cat", model__secretName="keys"), "pod.imagePullSecrets"),
        (with_fields(FOREIGN, model__secretName="keys"), "model.secretName has no effect"),
        (with_fields(MINIMAL, model__follow="Rollout"), "follow Rollout requires"),
        *(
            (with_fields(MINIMAL, model__uri=uri, model__follow="Rollout"), "follow Rollout requires")
            for uri in ("s3://b/cat", "models:/cat/3", "models:/m-12ab", f"hf://team/cat@{'c' * 40}")
        ),
        *(
            (with_fields(MINIMAL, model__uri=f"pvc://{place}"), "requires the name of a claim")
            for place in ("claim/../../etc", "claim/a/%2e%2E", "../x", "Claim_BAD/x", "/x")
        ),
        (
            with_fields(MINIMAL, model={"uri": "oci://r/cat", "volume": {"persistentVolumeClaim": {"claimName": "c"}}}),
            "model that is downloaded",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_invalid_spec_violates_one_rule(spec: Json, message: str) -> None:
    broken = refused(spec)

    assert len(broken) == 1
    assert message in broken[0]


@pytest.mark.parametrize("path", ["/data", "/tmp/a", "/run/user", "/runs", "/var/lib", "/var/cache/hub", "/a..b"])
def test_other_mount_paths_are_allowed(path: str) -> None:
    assert refused(with_fields(MINIMAL, runtime={"volumeMounts": [{"name": "a", "mountPath": path}]})) == []


@pytest.mark.parametrize(
    "uri",
    [
        "file:///models/a@b?c",
        "https://me:word@host/m?sig=1",
        "s3://bucket/a@b:c",
        "gs://bucket",
        "abfss://box@acc.dfs.core.windows.net/m",
        "hf://team/encoder@v1/sub",
        "models:/iris/3",
        "models:/iris@champion",
        "runs:/12/model",
        "oci://registry:5000/cat@sha256:12",
        "pvc://claim/cat",
    ],
)
def test_uris_of_every_scheme_are_allowed(uri: str) -> None:
    pattern = root_schema()["properties"]["spec"]["properties"]["model"]["properties"]["uri"]["pattern"]

    assert re.match(pattern.replace(r"\z", r"\Z"), uri)
    assert refused(with_fields(MINIMAL, model__uri=uri)) == []
    assert parse_spec({"spec": with_fields(MINIMAL, model__uri=uri)}).model.uri == uri


@pytest.mark.parametrize("uri", ["hf://team/encoder", "models:/iris@champion", "models:/iris/latest"])
def test_moving_names_may_be_followed_with_a_secret(uri: str) -> None:
    assert refused(with_fields(MINIMAL, model={"uri": uri, "follow": "Rollout", "secretName": "team.keys"})) == []


@pytest.mark.parametrize("uri", ["/models/x", "models/x", "C:models"])
@pytest.mark.parametrize("volume", [None, {"hostPath": {"path": "/models"}}])
def test_only_the_pattern_rejects_a_path_as_uri(uri: str, volume: Json | None) -> None:
    pattern = root_schema()["properties"]["spec"]["properties"]["model"]["properties"]["uri"]["pattern"]

    assert not re.match(pattern.replace(r"\z", r"\Z"), uri)
    assert refused(with_fields(MINIMAL, model__uri=uri, model__volume=volume)) == []


@pytest.mark.parametrize(
    ("path", "good", "bad"),
    [
        (("model", "uri"), "https://a/b", "file:///a\0b"),
        (("model", "uri"), "file:///a b", "file:///a\n"),
        (("model", "version"), "1", "1\n"),
        (("model", "volume", "mountPath"), "/a", "/a\0"),
        (("runtime", "args", "items"), "-x", "\0"),
        (("runtime", "env", "items", "value"), "a\nb", "a\0"),
        (("proxy", "env", "items", "value"), "", "x" * 122_881),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else "",
)
def test_invalid_arguments_and_variables_are_rejected_at_admission(path: tuple[str, ...], good: str, bad: str) -> None:
    schema = root_schema()["properties"]["spec"]
    for name in path:
        schema = schema["items"] if name == "items" else schema["properties"][name]

    def accepts(text: str) -> bool:
        # RE2's $ matches only at the end; Python's also before a final newline.
        return len(text) <= schema["maxLength"] and bool(re.search(schema["pattern"].replace("$", r"\Z"), text))

    assert accepts(good)
    assert not accepts(bad)


@pytest.mark.parametrize(
    ("target", "queue", "batching"),
    [
        (1024 + 64, {}, {}),
        (64 + 64, {"maxRows": 64}, {}),
        (6 * 300, {}, {"maxBatchSize": 300}),
        (1120, {}, {"inFlight": 2}),
    ],
)
def test_the_largest_target_is_the_capacity_of_a_pod(target: int, queue: Json, batching: Json) -> None:
    scaling = {"maxReplicas": 2, "targetQueueDepth": target}

    assert refused(with_fields(MINIMAL, scaling=scaling, queue=queue, batching=batching)) == []
    assert refused(
        with_fields(MINIMAL, scaling={**scaling, "targetQueueDepth": target + 1}, queue=queue, batching=batching)
    )


def test_every_rule_points_at_a_field_that_exists() -> None:
    sections = list(sections_below(InferenceServiceSpec))
    assert len(sections) > 10
    for section in sections:
        for rule in section.RULES:
            _assert_path(section, rule.path)


def sections_below(section: type[SettingsSection]) -> Iterator[type[SettingsSection]]:
    yield section
    for each in fields_of(section):
        if inner := section_of(each.kind) or section_of(element_of(each.kind)):
            yield from sections_below(inner)


def _assert_path(section: Any, path: str) -> None:
    for part in path.split(".") if path else []:
        section = next(each.kind for each in fields_of(section) if each.name == part)


def test_defaults_of_the_schema_are_those_of_the_model() -> None:
    filled = defaulted(root_schema()["properties"]["spec"], MINIMAL)

    assert parse_spec(service(filled)) == parse_spec(service(MINIMAL))


def test_every_default_satisfies_the_rules_as_it_stands() -> None:
    def walk(schema: Json) -> int:
        count = 0
        if "default" in schema:
            assert broken_rules(schema, schema["default"]) == []
            count += 1
        return count + sum(walk(part) for part in schema.get("properties", {}).values())

    assert walk(root_schema()) > 20


def test_the_schema_holds_no_floats_and_bounds_every_list() -> None:
    def walk(schema: Any) -> None:
        if isinstance(schema, list):
            for item in schema:
                walk(item)
        elif isinstance(schema, dict):
            assert schema.get("type") != "number"
            assert schema.get("type") != "array" or "maxItems" in schema
            for part in schema.values():
                walk(part)

    walk(root_schema())


def test_scale_and_status_are_subresources_and_the_columns_are_there() -> None:
    version = custom_resource_definition()["spec"]["versions"][0]

    assert version["subresources"]["scale"]["labelSelectorPath"] == ".status.selector"
    assert version["subresources"]["status"] == {}
    names = [column["name"] for column in version["additionalPrinterColumns"] if "priority" not in column]
    assert names == ["Ready", "Reason", "Replicas", "URL", "Age"]
