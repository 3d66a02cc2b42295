from typing import Any

import numpy as np
import orjson
import pytest

from shoal.printing import json_text, progress_bar, result_text, signature_text, table
from shoal.wire.datatypes import object_array
from shoal.wire.signature import Signature, Tensor

LABELS = object_array(["tabby cat", "fox"], (2,))


def test_outputs_of_one_length_are_the_columns_of_a_table() -> None:
    answer = {"label": LABELS, "probability": np.array([0.75, 0.000012], dtype="f4")}

    assert result_text(answer, ["label", "probability"]) == (
        "label      probability\ntabby cat  0.75\nfox        1.2e-05"
    )


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param(np.float32(0.5), "y: 0.5", id="a number"),
        pytest.param("a cat", "y: a cat", id="text"),
        pytest.param(b"\xff\xfe", "y: 2 bytes", id="bytes"),
        pytest.param(np.array([1, 2]), "y: [1, 2]", id="a short array"),
        pytest.param({"a": 1}, 'y: {\n  "a": 1\n}', id="a JSON object"),
        pytest.param(None, "y: null", id="JSON null"),
        pytest.param(np.zeros((0, 3)), "y: []", id="an empty array"),
    ],
)
def test_a_single_output_is_named_and_shown(answer: Any, text: str) -> None:
    assert result_text(answer, ["y"]) == text


def test_a_long_array_is_described() -> None:
    text = result_text(np.arange(1000, dtype="f4"), ["y"])

    assert text.startswith("y: float32 [1000], 0 to 999, begins 0. 1. 2.")


def test_outputs_that_are_no_columns_are_shown_one_by_one() -> None:
    answer = {"a": np.array([1, 2]), "b": np.float32(0.5)}

    assert result_text(answer, ["b", "a"]) == "b: 0.5\na: [1, 2]"


def test_truth_values_and_long_label_lists_are_shown() -> None:
    assert "begins" in result_text(np.zeros(100, dtype=bool), ["y"])
    assert result_text(object_array(["x"] * 100, (100,)), ["y"]).count("x") == 100


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ({"label": LABELS, "n": np.int64(2)}, {"label": ["tabby cat", "fox"], "n": 2}),
        (np.array([[1.5]], dtype="f2"), [[1.5]]),
        (b"ab", "ab"),
        (np.array([[1, 2], [3, 4]]).T, [[1, 3], [2, 4]]),
    ],
)
def test_any_answer_has_a_json_form(answer: Any, value: Any) -> None:
    assert orjson.loads(json_text(answer)) == value


def test_a_signature_is_a_table() -> None:
    signature = Signature(
        "cat",
        ("1",),
        (Tensor("image", "BYTES", (-1,), content_types=("image/jpeg",)),),
        (Tensor("mask", "FP32", (-1, -1, 5), optional=True), Tensor("p", "FP32", (-1, 2), columns=("no", "yes"))),
        max_batch_size=32,
        allowed_batch_sizes=(1, 2),
    )

    assert signature_text(signature) == (
        "cat; version 1; batches of up to 32; padded up to 1, 2 rows\n"
        "\n"
        "        name   type   one row   notes\n"
        "input   image  BYTES  scalar    image/jpeg\n"
        "output  mask   FP32   [any, 5]  optional\n"
        "output  p      FP32   [2]       columns no, yes"
    )


def test_a_model_of_single_items_says_so() -> None:
    signature = Signature("x", (), (Tensor("a", "FP32", (2,)),), ())

    assert signature_text(signature).startswith("x; one item per call\n")


def test_a_name_that_a_terminal_would_obey_is_shown_instead() -> None:
    assert (
        table([("a\x1b]0;owned\x07", "b\nc"), ("größe", "d")]) == "a\\x1b]0;owned\\x07  b\\nc\ngröße" + " " * 14 + "d"
    )


@pytest.mark.parametrize(
    ("text", "bar"),
    [
        ("the runtime is not ready: downloading 0 %", f"downloading [{30 * '-'}] 0 %"),
        ("downloading 50 %", f"downloading [{15 * '#'}{15 * '-'}] 50 %"),
        ("downloading 100 %", f"downloading [{30 * '#'}] 100 %"),
        ("downloading 12 MB", ""),
        ("warming up 3 of 6", ""),
    ],
)
def test_a_percentage_is_drawn(text: str, bar: str) -> None:
    assert progress_bar(text) == bar
