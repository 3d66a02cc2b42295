import shlex
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from shoal.serving.hints import first_requests
from shoal.wire.signature import Signature, Tensor
from tests.client.wire.signatures import ADDER, JSON, MASKED, PICTURES, TEXTS, TWO, signature

URL = "http://127.0.0.1:8080"
COLUMNS = signature((Tensor("input-0", "FP64", (-1, 2), columns=("p", "q")),))
DATES = signature((Tensor("born", "BYTES", (-1,), logical_type="datetime", content_types=("text/plain",)),))


@pytest.mark.parametrize(
    ("signature", "body", "command"),
    [
        pytest.param(ADDER, [0.5, 0.5, 0.5], "--data [0.5,0.5,0.5]", id="numbers"),
        pytest.param(TEXTS, "a small fish among many", "--text a small fish among many", id="text"),
        pytest.param(JSON, {}, "--data {}", id="JSON"),
        pytest.param(MASKED, [1, 1, 1], "--data [1,1,1]", id="an optional input is left out"),
        pytest.param(COLUMNS, {"p": 0.5, "q": 0.5}, '--data {"p":0.5,"q":0.5}', id="an input with columns"),
        pytest.param(DATES, "2024-01-31T12:00:00", "--text 2024-01-31T12:00:00", id="a date"),
        pytest.param(TWO, {"a": [1, 1], "b": 0.5}, '--data {"a":[1,1],"b":0.5}', id="two inputs"),
    ],
)
def test_a_small_item_is_written_out(signature: Signature, body: object, command: str) -> None:
    curl, shoal = first_requests(URL, signature)

    words = shlex.split(curl)
    assert orjson.loads(words[words.index("-d") + 1]) == {"instances": [body]}
    assert words[-1] == f"{URL}/v1/models/model:predict"
    assert " ".join(shlex.split(shoal)) == f"shoal predict {URL} {command}"


def test_a_model_s_own_example_is_what_is_asked_first() -> None:
    fills = signature((Tensor("text", "BYTES", (-1,), content_types=("text/plain",), example="a <mask> fish"),))

    curl, shoal = first_requests(URL, fills)

    assert '{"instances":["a <mask> fish"]}' in curl
    assert shoal.endswith("--text 'a <mask> fish'")


def test_a_picture_is_sent_as_a_file() -> None:
    curl, shoal = first_requests(URL, PICTURES)

    assert curl == (
        "curl -H 'Content-Type: image/jpeg' --data-binary @picture.jpg http://127.0.0.1:8080/predictions/model"
    )
    assert shoal == "shoal predict http://127.0.0.1:8080 picture.jpg"


def test_the_picture_that_lies_beside_the_model_is_named_by_its_path() -> None:
    curl, shoal = first_requests(URL, PICTURES, ("my models/cat/cat.yaml", "my models/cat/picture.jpg"))

    assert "--data-binary @'my models/cat/picture.jpg' " in curl
    assert shlex.split(shoal)[-1] == "my models/cat/picture.jpg"


def test_a_large_item_is_made_by_a_program() -> None:
    large = signature((Tensor("x", "FP32", (-1, 3, 224, 224)),))

    curl, shoal = first_requests(URL, large)

    program = shlex.split(curl.split(" | ")[0])[2]
    compile(program, "hint", "exec")
    assert "numpy.full((3, 224, 224), 0.5)" in program
    assert shoal.endswith("item.npy")


def test_bytes_of_no_declared_type_are_shown_as_text() -> None:
    curl, shoal = first_requests(URL, signature((Tensor("blob", "BYTES", (-1,)),)))

    assert '-d \'{"instances":["a small fish among many"]}\'' in curl
    assert "--text 'a small fish among many'" in shoal


def test_a_large_item_of_several_inputs_is_made_by_name() -> None:
    large = signature((Tensor("a", "FP32", (-1, 99)), Tensor("b", "FP32", (-1, 2))))

    curl, shoal = first_requests(URL, large)

    assert '{"a": numpy.full((99,), 0.5).tolist(), "b": numpy.full((2,), 0.5).tolist()}' in curl
    assert shoal.endswith("item.npz")


def made(curl: str) -> object:
    """Run the program of a hint, as a shell does, and return the body that it makes."""
    program = shlex.join(shlex.split(curl.split(" | ", maxsplit=1)[0]))
    ended = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return orjson.loads(ended.stdout)


def test_a_large_item_holds_elements_that_the_model_takes() -> None:
    large = signature((Tensor("ids", "INT64", (-1, 99)), Tensor("mask", "BOOL", (-1, 2))))

    assert made(first_requests(URL, large)[0]) == {"instances": [{"ids": [1] * 99, "mask": [True, True]}]}


HOSTILE = "$(touch hacked)`touch hacked`\"; touch hacked; '\n\\"


def test_what_a_model_calls_its_inputs_runs_in_no_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin")
    for name in ("curl", "shoal"):
        (tmp_path / name).write_text("#!/bin/sh\ncat\n")
        (tmp_path / name).chmod(0o755)
    large = signature((Tensor(HOSTILE, "FP32", (-1, 99)), Tensor("b", "FP32", (-1, 2))))
    render = signature((Tensor("image", "BYTES", (-1,), content_types=(f"image/{HOSTILE}",)),))
    small = signature((Tensor(HOSTILE, "FP32", (-1, 2)), Tensor("b", "FP32", (-1, 2))))

    for each in (large, render, small):
        for line in first_requests(URL, each):
            subprocess.run(["bash", "-c", line], stdin=subprocess.DEVNULL, check=True, timeout=60, capture_output=True)

    assert sorted(file.name for file in tmp_path.iterdir()) == ["curl", "shoal"]
    assert made(first_requests(URL, large)[0]) == {"instances": [{HOSTILE: [0.5] * 99, "b": [0.5] * 2}]}


def test_what_a_model_that_takes_anything_is_sent_is_a_file_of_any_kind() -> None:
    curl, shoal = first_requests(URL, signature((Tensor("body", "BYTES", (-1,), content_types=("*/*",)),)))

    assert curl == f"curl -T FILE {URL}/predictions/model"
    assert shoal == f"shoal predict {URL} FILE"


@pytest.mark.parametrize("model", [ADDER, TEXTS, PICTURES])
def test_a_model_among_others_is_named(model: Signature) -> None:
    _, shoal = first_requests(URL, model, among_others=True)

    assert shoal.startswith(f"shoal predict {URL} --model model ")
