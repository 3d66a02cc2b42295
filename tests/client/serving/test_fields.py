import re
from pathlib import Path
from typing import Any

import pytest

from shoal.serving.fields import (
    FIELDS,
    FieldError,
    check_value,
    merge,
    parse_assignment,
    to_environment,
    with_field_names,
)

CONTRACTS = Path(__file__).parents[3] / "docs" / "contracts.md"


def test_the_table_is_that_of_the_contracts() -> None:
    rows = re.findall(r"^\| `(SHOAL_\w+)` \|.*\| `([\w.]+)` \|$", CONTRACTS.read_text(), re.MULTILINE)

    assert {(field.variable, field.name) for field in FIELDS} == set(rows)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batching.maxBatchSize=64", {"batching.maxBatchSize": 64}),
        ("batching.maxDelayMilliseconds=0.5", {"batching.maxDelayMilliseconds": 0.5}),
        ("batching.allowedBatchSizes=1, 2,4", {"batching.allowedBatchSizes": ["1", "2", "4"]}),
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
        ("zzz=1", "known fields: metadata.name, "),
        ("=1", "no field"),
        ("batching.maxBatchSize=many", "takes a whole number, not 'many'"),
        ("batching.maxBatchSize=1.5", "takes a whole number"),
        ("batching.maxDelayMilliseconds=true", "takes a number"),
        ("runtime.compile=yes", "takes true or false, not 'yes'"),
        ("batching.allowedBatchSizes=1,,2", "takes a list"),
        ("model.parameters=7", "takes an object"),
    ],
)
def test_a_wrong_assignment_says_what_would_be_right(text: str, message: str) -> None:
    with pytest.raises(FieldError, match=message):
        parse_assignment(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batching.maxBatchSize", "64"),
        ("batching.maxBatchSize", True),
        ("runtime.forwardTimeoutSeconds", "1"),
        ("runtime.compile", "true"),
        ("metadata.name", 7),
        ("batching.allowedBatchSizes", "1,2"),
        ("batching.allowedBatchSizes", [[1]]),
        ("model.parameters", []),
    ],
)
def test_a_manifests_value_must_have_its_fields_type(name: str, value: Any) -> None:
    with pytest.raises(FieldError, match=f"{name} takes"):
        check_value(name, value)


def test_parameters_are_merged_and_other_fields_replaced() -> None:
    base = {"model.parameters": {"a": {"x": 1}, "b": 2}, "queue.maxItems": 1}
    over = {"model.parameters": {"a": {"y": 3}}, "queue.maxItems": 2}

    assert merge(base, over) == {
        "model.parameters": {"a": {"x": 1, "y": 3}, "b": 2},
        "queue.maxItems": 2,
    }


def test_values_become_environment_variables() -> None:
    values = {
        "batching.maxBatchSize": 64,
        "runtime.compile": False,
        "batching.allowedBatchSizes": [1, 2],
        "model.parameters": {"a": "ü"},
        "model.uri": "/m",
    }

    assert to_environment(values) == {
        "SHOAL_BATCHING_MAX_BATCH_SIZE": "64",
        "SHOAL_RUNTIME_COMPILE": "false",
        "SHOAL_BATCHING_ALLOWED_BATCH_SIZES": "1,2",
        "SHOAL_MODEL_PARAMETERS": '{"a":"ü"}',
        "SHOAL_MODEL_URI": "/m",
    }


def test_a_processes_sentence_gets_the_fields_name() -> None:
    sentence = "SHOAL_QUEUE_MAX_ROWS must be at least 32, not 1"

    assert with_field_names(sentence) == ("queue.maxItems (SHOAL_QUEUE_MAX_ROWS) must be at least 32, not 1")
    assert with_field_names("SHOAL_UNKNOWN, SHOAL_MODEL_URI") == ("SHOAL_UNKNOWN, model.uri (SHOAL_MODEL_URI)")
    assert with_field_names("out of memory") == "out of memory"
    assert with_field_names("set SHOAL_MODEL_ALLOW_PICKLE=true (model.allowPickle) if you trust it") == (
        "set model.allowPickle=true (SHOAL_MODEL_ALLOW_PICKLE) if you trust it"
    )
    assert (
        with_field_names("SHOAL_MODEL_URI (beside it) is empty") == "model.uri (SHOAL_MODEL_URI) (beside it) is empty"
    )
