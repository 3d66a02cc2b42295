from typing import Any

import pytest

from shoal.serving.errors import FieldError
from shoal.serving.fields import (
    check_rules,
    merge,
    parse_assignment,
    to_environment,
    without_effect,
    without_secrets,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batching.maxBatchSize=64", {"batching.maxBatchSize": 64}),
        ("batching.maxDelayMilliseconds=0.5", {"batching.maxDelayMilliseconds": 0.5}),
        ("batching.allowedBatchSizes=1, 2,4", {"batching.allowedBatchSizes": (1, 2, 4)}),
        ("runtime.compile=True", {"runtime.compile": True}),
        ("model.handler=a.b:C", {"model.handler": "a.b:C"}),
        ("model.uri=http://h/m?a=b", {"model.uri": "http://h/m?a=b"}),
        ('model.parameters={"a": 1}', {"model.parameters": {"a": 1}}),
        ("model.parameters.base=4000", {"model.parameters": {"base": 4000}}),
        ("model.parameters.name=resnet", {"model.parameters": {"name": "resnet"}}),
        ("model.parameters.deep.er=[1]", {"model.parameters": {"deep": {"er": [1]}}}),
        ("model.parameters.text==", {"model.parameters": {"text": "="}}),
    ],
)
def test_an_assignment_has_the_type_of_its_field(text: str, expected: dict[str, Any]) -> None:
    assert parse_assignment(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batching.maxBatchSize", "takes FIELD=VALUE"),
        (
            "batching.maxBatchsize=1",
            r"no field batching.maxBatchsize; did you mean batching.maxBatchSize\?",
        ),
        ("maxBatchSize=1", r"did you mean batching.maxBatchSize\?"),
        ("batch.max_size=1", "no field"),
        ("scaling.maxReplica=1", r"no field scaling.maxReplica; did you mean scaling.maxReplicas\?"),
        ("zzz=1", "known are access.header.keys, "),
        ("=1", "no field"),
        ("batching.maxBatchSize=many", "must be 1 to 65536, not 'many'"),
        ("batching.maxBatchSize=1.5", "must be 1 to 65536"),
        ("batching.maxDelayMilliseconds=true", "must be 0 to 60000"),
        ("runtime.compile=yes", "must be true or false, not 'yes'"),
        ("batching.allowedBatchSizes=1,x", "must be numbers of 1 to 65536, comma-separated"),
        ("model.parameters=7", "must be a JSON object"),
    ],
)
def test_a_wrong_assignment_says_what_would_be_right(text: str, message: str) -> None:
    with pytest.raises(FieldError, match=message):
        parse_assignment(text)


def test_parameters_are_merged_and_other_fields_replaced() -> None:
    base = {"model.parameters": {"a": {"x": 1}, "b": 2}, "queue.maxRows": 1}
    over = {"model.parameters": {"a": {"y": 3}}, "queue.maxRows": 2}

    assert merge(base, over) == {
        "model.parameters": {"a": {"x": 1, "y": 3}, "b": 2},
        "queue.maxRows": 2,
    }


def test_values_become_environment_variables() -> None:
    values = {
        "batching.maxBatchSize": 64,
        "runtime.compile": False,
        "batching.allowedBatchSizes": (1, 2),
        "model.parameters": {"a": "ü"},
        "model.uri": "/m",
    }

    assert to_environment(values) == {
        "SHOAL_BATCHING_MAX_BATCH_SIZE": "64",
        "SHOAL_RUNTIME_COMPILE": "false",
        "SHOAL_BATCHING_ALLOWED_BATCH_SIZES": "1,2",
        "SHOAL_MODEL_PARAMETERS": '{"a":"\\u00fc"}',
        "SHOAL_MODEL_URI": "/m",
    }


def test_a_field_of_an_older_release_is_named_as_it_is_now() -> None:
    with pytest.raises(FieldError, match=r"queue\.maxItems.*queue\.maxRows"):
        parse_assignment("queue.maxItems=5")
    with pytest.raises(FieldError, match=r"runtime\.forwardHeaders.*proxy\.forwardHeaders"):
        parse_assignment("runtime.forwardHeaders=x-tenant")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("model.parameters.x=\udcff", "--set takes UTF-8 text"),
        ("model.parameters." + ".".join("a" * 2000) + "=1", "may be nested 100 levels deep, not 2000"),
        ("queue.maxRows=" + "9" * 5000, "queue.maxRows must be 1 to 1000000"),
    ],
)
def test_an_assignment_that_no_setting_can_carry_is_refused(assignment: str, message: str) -> None:
    with pytest.raises(FieldError, match=message):
        parse_assignment(assignment)


@pytest.mark.parametrize(
    ("uri", "message"), [("/a\0b", "must not contain the character NUL"), ("/a\udcff", "not UTF-8 text")]
)
def test_a_value_that_no_environment_can_carry_is_refused(uri: str, message: str) -> None:
    with pytest.raises(FieldError, match=f"model.uri .*{message}"):
        to_environment({"model.uri": uri})


@pytest.mark.parametrize(
    ("given", "idle"),
    [
        ("scaling.maxReplicas=3", "scaling.maxReplicas"),
        ("runtime.resources.limits.cpu=2", "runtime.resources.limits.cpu"),
        ("pod.nodeSelector={}", "pod.nodeSelector"),
        ("scaling.maxreplicas=3", None),
        ("scaling=3", None),
        ("scaling.maxReplicas", None),
        ("batching.maxBatchSize=3", None),
    ],
)
def test_what_only_a_cluster_acts_on_is_known_to_have_no_effect_here(given: str, idle: str | None) -> None:
    assert without_effect(given) == idle


def test_what_no_process_can_be_started_with_is_refused_by_field() -> None:
    with pytest.raises(FieldError, match=r"model\.parameters takes 900031 bytes .*SHOAL_MODEL_PARAMETERS"):
        to_environment({"model.parameters": {"a": "x" * 900_000}})
    assert to_environment({"model.parameters": {"a": "x" * 100_000}})


def test_the_proxy_is_told_neither_where_a_model_is_from_nor_what_opens_it() -> None:
    kept = {
        "PATH": "/bin",
        "PYTHONPATH": "/x",
        "HTTPS_PROXY": "http://proxy:3128",
        "SHOAL_MODEL_NAME": "iris",
        "SHOAL_PROXY_LISTEN": "127.0.0.1:80",
        "SHOAL_PROXY_LISTNE": "misspelt",
    }
    dropped = {
        "SHOAL_MODEL_URI": "https://store/iris.skops?sig=x",
        "AWS_ACCESS_KEY_ID": "A",
        "AWS_SECRET_ACCESS_KEY": "B",
        "AZURE_STORAGE_SAS_TOKEN": "C",
        "HF_TOKEN": "D",
        "GOOGLE_APPLICATION_CREDENTIALS": "/e.json",
        "MLFLOW_TRACKING_PASSWORD": "F",
        "MLFLOW_TRACKING_URI": "http://user:G@mlflow:5000",
    }

    assert without_secrets({**kept, **dropped}) == kept


DELAY = {"batching.maxDelayMilliseconds": 5.0}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (DELAY, "batching.maxDelayMilliseconds: maxDelayMilliseconds requires policy Fixed"),
        ({"batching.allowedBatchSizes": (1, 2)}, "batching.allowedBatchSizes: the largest"),
        ({"queue.maxRows": 4, "batching.maxBatchSize": 8}, "queue.maxRows: "),
        ({"queue.fairShareWeights": {"a": 2}}, "queue.fairShareWeights: fairShareWeights requires fairShareHeader"),
        ({"model.uri": "/models/a b", "model.handler": "a:B", "model.format": "Onnx"}, "model.handler: "),
    ],
)
def test_a_broken_rule_is_reported_as_the_api_server_does(values: dict[str, Any], message: str) -> None:
    with pytest.raises(FieldError, match=f"^{message}"):
        check_rules(values, {})


@pytest.mark.parametrize(
    ("values", "environment"),
    [
        ({}, {}),
        ({"batching.policy": "Fixed", **DELAY}, {}),
        # Fields override the environment, and the process reports an invalid variable.
        (DELAY, {"SHOAL_BATCHING_POLICY": "fixed"}),
        ({"model.uri": "relative/dir#1"}, {"SHOAL_BATCHING_MAX_DELAY_MS": "many"}),
        ({"access.header.name": "x-user"}, {}),
    ],
)
def test_fields_that_keep_the_rules_pass(values: dict[str, Any], environment: dict[str, str]) -> None:
    check_rules(values, environment)
