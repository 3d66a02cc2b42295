"""Rules over several fields: the API server's CEL and Python agree on generated specs, and say the same sentence."""

import copy
import random
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import cel
import msgspec
import pytest

from shoal_schema.decoding import SpecError, decode, decode_text
from shoal_schema.fields.declaring import Json, SettingsSection
from shoal_schema.fields.rules import Custom, broken
from shoal_schema.publishing.batch import batches
from shoal_schema.publishing.crd import Definition, custom_resource_definition, services
from shoal_schema.publishing.graph import graphs
from tests.operator import samples
from tests.schema.test_crd import defaulted, sections_below

SPECS = 3000
KINDS = {each.kind: each for each in (services(), batches(), graphs())}
SEED = 20261126
# Values at the edges of rules, beside those of the samples and of the schema.
VALUES: Mapping[str, tuple[Any, ...]] = {
    "uri": (
        *("file:///models/a", "hf://owner/name", "hf://owner/name@" + "a" * 40, "models:/cat@live", "models:/cat/3"),
        *("pvc://claim/a", "pvc://claim/../a", "oci://registry/a", "s3://KEY:SECRET@bucket/a", "s3://bucket/a?x=1"),
        *("https://host/a", "https://:1/a", "https://host:99999/a", "HTTPS://host/a", "ftp://host/a"),
    ),
    "errors": ("s3://KEY:SECRET@bucket/a", "s3://bucket/errors"),
    "service": ("classify",),
    "fairShareWeights": ({"gold": 2},),
    "parameters": ({"labels": "cat"}, {}),
    "graph": ("other",),
    "precision": ({"maxAbsError": "1e-3"}, {}),
    "mountPath": ("/models", "/run/shoal/x", "/data/../run", "/etc"),
    "grpcPort": (8080, 9000),
    "port": (8080, 9000),
    "name": ("proxy", "run", "detect", "request", "classify", "SHOAL_X", "host"),
    "forwardHeaders": (["host"], ["x-a"]),
    "fairShareHeader": ("Content-Type", "x-client"),
    "containers": ([{"name": "proxy"}], [{"name": "a", "ports": [{"containerPort": 9000}, {}]}], [{"name": "b"}]),
    "pod": (
        {"containers": [{"name": "a", "ports": [{"containerPort": 9000}]}]},
        {"initContainers": [{"name": "a", "ports": [{"containerPort": 9000}]}]},
        {},
    ),
    "initContainers": (
        [{"name": "model"}],
        [{"name": "a", "ports": [{"containerPort": 8080}, {"containerPort": 9000}]}],
    ),
    "volumes": ([{"name": "tmp"}], [{"name": "data"}]),
    "volumeMounts": ([{"name": "a", "mountPath": "/tmp"}], [{"name": "a", "mountPath": "/a"}]),
    "annotations": ({"serving.shoal.dev/x": "y"}, {"a": "b"}),
    "env": ([{"name": "SHOAL_X", "value": "1"}], [{"name": "A", "value": "1"}]),
    "secretName": ("one", "two"),
    "clientCaSecretName": ("one", "two"),
    "minReplicas": (0, 1, 3),
    "maxReplicas": (1, 2),
    "targetQueueDepth": (1, 200, 100_000),
    "maxRows": (1, 64, 2000),
    "maxBatchSize": (1, 32, 512),
    "allowedBatchSizes": ([1, 32], [1, 512], [7]),
    "maxSurge": (0, 1),
    "maxUnavailable": (0, 1),
    "maxRatio": ("0", "0.0e1", "1.1"),
    "header": ("x-user", "Host"),
    "minReadySeconds": (0, 3600),
    "progressDeadlineSeconds": (1, 600),
    "inputs": ({"x": "request.x"}, {"x": "nowhere.x"}, {"x": "detect.boxes"}),
    "outputs": ({"y": ["detect.boxes"]}, {"y": ["nowhere.y"]}, {"z": ["request.x"]}, {"y": {}}),
    "combine": ({"y": "First"}, {"w": "Mean"}),
    "each": ("detect.boxes", "nowhere.x"),
    "count": ("request.n",),
    "when": ("detect.score > 0.5",),
    "image": ("", "registry/image:1"),
    "from": ([{"namespaceSelector": {}}],),
    "command": (["serve"],),
    "args": (["--fast"],),
    "source": ("class Composer: pass",),
    "importPath": ("graph:Composer",),
}


TEXTS = (
    *("one", "/a", "registry/image:1", "sha256:" + "0" * 64, "0.5", "1Gi", "step.output", "module:Name", "12:00"),
    *("https://issuer.example/keys", "http://host:8080/v2/models/m", "file:///rows", "s3://bucket/rows", "a == 1"),
)


COMPARISONS: tuple[Json, ...] = (
    {"outputs": {"y": {}}},
    {"latency": {"maxRatio": "2"}},
    {"errors": {"maxShare": "0.5"}},
    {"allowSignatureChange": True},
)


@cache
def schema_of(kind: str) -> Json:
    schema: Json = custom_resource_definition(KINDS[kind])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec: Json = schema["properties"]["spec"]
    return spec


def value_of(schema: Json, name: str, rng: random.Random) -> Any:
    """Return a value that a field's schema allows, or almost allows."""
    fitting = [each for each in VALUES.get(name, ()) if _matches(schema, each)]
    if fitting and rng.random() < 0.8:
        return copy.deepcopy(rng.choice(fitting))
    if "properties" in schema:
        required = set(schema.get("required", ()))
        # Most fields are absent, so that whole specs are often valid.
        share = rng.choice([0.05, 0.2, 0.6])
        return {
            each: value_of(part, each, rng)
            for each, part in schema["properties"].items()
            if each in required or rng.random() < share
        }
    if schema.get("type") == "array":
        least = schema.get("minItems", 0)
        return [value_of(schema["items"], name, rng) for _ in range(rng.randrange(least, least + 3))]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    simple = {
        "boolean": [True, False],
        "integer": [schema.get("minimum", 0), schema.get("default", 1), schema.get("maximum", 9)],
        "string": [each for each in TEXTS if _matches(schema, each)],
    }
    return rng.choice(simple.get(schema.get("type", "")) or [{}])


def _matches(schema: Json, value: Any) -> bool:
    return not isinstance(value, str) or re.search(schema.get("pattern", ""), value) is not None


@cache
def program(rule: str) -> Any:
    return cel.compile(rule)


def by_the_api_server(schema: Json, value: Any) -> Iterator[str]:
    """Yield the messages of the CEL rules that a value with its defaults breaks, except those of a change."""
    for rule in schema.get("x-kubernetes-validations", []):
        if "oldSelf" not in rule["rule"] and not program(rule["rule"]).execute(cel.Context({"self": value})):
            yield rule["message"]
    if isinstance(value, dict):
        for name, part in schema.get("properties", {}).items():
            yield from by_the_api_server(part, value[name]) if name in value else ()
    if isinstance(value, list):
        for each in value:
            yield from by_the_api_server(schema["items"], each)


def typed(definition: Definition, rng: random.Random) -> tuple[Json, SettingsSection]:
    """Return a generated spec of valid types, as JSON and as a section."""
    while True:
        spec = value_of(schema_of(definition.kind), "", rng)
        try:
            return spec, msgspec.convert(spec, definition.spec, dec_hook=decode_text)
        except (msgspec.ValidationError, ValueError):
            continue


@pytest.mark.parametrize("kind", KINDS)
def test_the_api_server_and_python_find_the_same_broken_rules(kind: str) -> None:
    definition, rng, seen = KINDS[kind], random.Random(SEED), set[str]()
    rules = [rule for section in sections_below(definition.spec) for rule in section.RULES]
    wanted = {rule.message for rule in rules if not _of_a_change(rule)}
    count = 0
    # Some rules are broken by one spec in a thousand.
    while count < SPECS or (wanted - seen and count < 5 * SPECS):
        count += 1
        spec, section = typed(definition, rng)
        expected = sorted(by_the_api_server(schema_of(kind), defaulted(schema_of(kind), copy.deepcopy(spec))))
        assert sorted(rule.message for _, rule in broken(section)) == expected, f"seed {SEED}: {spec}"
        seen.update(expected)
    # Every rule was broken by some of the specs.
    assert wanted - seen == set(), f"seed {SEED}"


def _of_a_change(rule: Any) -> bool:
    return isinstance(rule.predicate, Custom) and "oldSelf" in rule.predicate.expression


@pytest.mark.parametrize(
    ("spec", "path", "fragment"),
    [
        ({"scaling": {"minReplicas": 5, "maxReplicas": 2}}, "spec.scaling.minReplicas", "must not exceed maxReplicas"),
        ({"batching": {"maxDelayMilliseconds": 5}}, "spec.batching.maxDelayMilliseconds", "requires policy Fixed"),
        ({"access": {}}, "spec.access.apiKeys", "requires apiKeys or jwt"),
        ({"runtime": {"port": 9000}}, "spec.runtime.image", "requires runtime.image"),
        (
            {"runtime": {"dtype": "Float16", "precision": {"minAgreement": "1"}}},
            "spec.runtime.precision",
            "requires dtype: Auto",
        ),
        *(
            ({"rollout": {"compare": compare}}, "spec.rollout.compare", "requires strategy Shadow or Canary")
            for compare in COMPARISONS
        ),
        (
            {"rollout": {"strategy": "Canary", "steps": [{"weight": 5}], "compare": {"outputs": {"y": {}}}}},
            "spec.rollout.compare.outputs",
            "requires a step with shadow",
        ),
        (
            {"rollout": {"strategy": "Canary", "steps": [{"shadow": 5}], "sticky": {"header": "x-user"}}},
            "spec.rollout.sticky",
            "requires a step with weight",
        ),
    ],
)
def test_an_error_names_the_field_and_has_the_sentence_of_the_rule(spec: Json, path: str, fragment: str) -> None:
    with pytest.raises(SpecError) as raised:
        decode(services().spec, {"model": {"uri": "file:///m"}, **spec}, "spec")
    assert any(each.startswith(f"{path}: ") and fragment in each for each in str(raised.value).split("; "))


@pytest.mark.parametrize(
    "rollout",
    [
        {"compare": {"errors": {"maxShare": "0.001"}}},  # the default
        {"strategy": "Shadow", "compare": {"outputs": {"y": {}}}},
        {"strategy": "Canary", "compare": {"outputs": {"y": {}}}, "sticky": {"header": "x-user"}},
        {
            "strategy": "Canary",
            "steps": [{"shadow": 5}, {"weight": 5}],
            "compare": {"outputs": {"y": {}}},
            "sticky": {"header": "x-user"},
        },
        {"strategy": "Canary", "steps": [{"weight": 5}], "compare": {"latency": {"maxRatio": "2"}}},
    ],
)
def test_a_comparison_of_steps_that_can_make_it_breaks_no_rule(rollout: Json) -> None:
    spec = {"model": {"uri": "file:///m"}, "rollout": rollout}

    assert list(broken(decode(services().spec, spec, "spec"))) == []


@pytest.mark.parametrize(
    "spec",
    [samples.MINIMAL, samples.EVERYTHING, samples.DOWNLOADED, samples.BY_HPA, samples.BY_KEDA, samples.FOREIGN],
)
def test_samples_break_no_rule(spec: Json) -> None:
    assert list(broken(decode(services().spec, spec, "spec"))) == []


@pytest.mark.parametrize("kind", KINDS)
def test_rules_ask_no_size_of_an_object_of_any_fields(kind: str) -> None:
    """The API server does not compile such a rule; the CEL of these tests does."""

    def check(schema: Json) -> None:
        for rule in schema.get("x-kubernetes-validations", []):
            for path in re.findall(r"self\.([\w.]+)\.size\(\)", rule["rule"]):
                part = schema
                for name in path.split("."):
                    part = part["properties"][name]
                assert "x-kubernetes-preserve-unknown-fields" not in part, rule["rule"]
        for part in schema.get("properties", {}).values():
            check(part)

    check(schema_of(kind))
