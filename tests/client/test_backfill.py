"""`shoal batch --to`: rows computed by a service that has callers of its own."""

import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.client.fake_server import ADDER, Answer, Call, json_answer, metadata, plus_one, running, tensor, v2

ROWS = 200


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    table = pa.table({"id": range(ROWS), "x": [[float(each)] * 3 for each in range(ROWS)]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def batch(url: str, rows: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [
        sys.executable,
        "-m",
        "shoal",
        "batch",
        "--to",
        url,
        "--input",
        str(rows),
        "--output",
        f"{rows.parent}/out",
    ]
    return subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, check=False)


def answered(rows: Path) -> list[Any]:
    table = parquet.read_table(rows.parent / "out" / "part-00000.parquet")
    return [(row["id"], row["y"], row["shoal_error"]) for row in table.to_pylist()]


def test_rows_have_the_lowest_priority_and_rejected_ones_are_retried(rows: Path) -> None:
    serve, calls, infers = v2(), [], count(1)

    def handle(call: Call) -> Answer | None:
        if not call.path.endswith("/infer"):
            return serve(call)
        calls.append(call)
        number = next(infers)
        if number in {1, 3}:
            return json_answer({"error": "full"}, 503, **{"Retry-After": "0"})
        if number == 5:
            return json_answer({"error": "not ready"}, 503)
        return serve(call)

    with running(handle) as server:
        ended = batch(server.url, rows)

    assert ended.returncode == 0, ended.stderr
    assert answered(rows) == [(each, [each + 1.0] * 3, None) for each in range(ROWS)]
    assert {call.headers["x-shoal-priority"] for call in calls} == {"9"}
    # As many rows to a request as the model takes, and three requests again.
    assert len(calls) == -(-ROWS // 32) + 3


ROW = [{"row": 0, "status": 400, "message": "seventy-seven"}]
REFUSALS = {
    "refused": json_answer({"error": "seventy-seven"}, 400),
    "named": json_answer({"error": "row 0: seventy-seven", "errors": ROW}, 400),
    "cut off": None,
}


@pytest.mark.parametrize("answer", REFUSALS.values(), ids=REFUSALS)
def test_a_row_that_the_service_does_not_take_fails_alone(rows: Path, answer: Answer | None) -> None:
    def forward(inputs: dict[str, Any]) -> dict[str, tuple[str, Any]]:
        if (inputs["x"] == 77).any():
            raise LookupError
        return plus_one(inputs)

    serve = v2(forward=forward)

    def handle(call: Call) -> Answer | None:
        try:
            return serve(call)
        except LookupError:
            return answer

    with running(handle) as server:
        ended = batch(server.url, rows)

    assert ended.returncode == 0, ended.stderr
    failed = [row for row in answered(rows) if row[2] is not None]
    assert [(row[0], row[1]) for row in failed] == [(77, None)]
    assert failed[0][2] == "seventy-seven" if answer else "connection" in failed[0][2]
    assert len(answered(rows)) == ROWS


def test_bfloat16_and_batches_along_another_dimension_come_as_from_a_model_of_its_own(rows: Path) -> None:
    model = metadata(
        [tensor("x", "BF16", [3, -1], batch_dim=1)], [tensor("y", "BF16", [3, -1], batch_dim=1)], max_batch_size=32
    )

    def forward(inputs: dict[str, Any]) -> dict[str, tuple[str, Any]]:
        bits: Any = inputs["x"]
        doubled = 2 * (bits.astype(np.uint32) << 16).view(np.float32)
        return {"y": ("BF16", (doubled.view(np.uint32) >> 16).astype(np.uint16))}

    with running(v2(model, forward)) as server:
        ended = batch(server.url, rows)

    assert ended.returncode == 0, ended.stderr
    assert answered(rows) == [(each, [2.0 * each] * 3, None) for each in range(ROWS)]


WRONG = [
    (
        {"y": ("INT64", np.zeros((32, 3), np.int64))},
        "the server's y is int64 [3] per row, but its signature declares FP32 [3]",
    ),
    ({"y": ("FP32", np.zeros((32, 2), np.float32))}, "the server's y is float32 [2] per row"),
    ({"z": ("FP32", np.zeros((32, 3), np.float32))}, "the server's y is none per row"),
]


@pytest.mark.parametrize(("outputs", "said"), WRONG)
def test_response_that_contradicts_the_signature_fails_its_rows(
    rows: Path, outputs: dict[str, tuple[str, Any]], said: str
) -> None:
    def forward(inputs: dict[str, Any]) -> dict[str, tuple[str, Any]]:
        return {name: (datatype, array[: len(inputs["x"])]) for name, (datatype, array) in outputs.items()}

    with running(v2(forward=forward)) as server:
        ended = batch(server.url, rows, "--max-error-share", "1")

    assert ended.returncode == 0, ended.stderr
    assert all(y is None and error.startswith(said) for _, y, error in answered(rows))


@pytest.mark.parametrize("status", [401, 403, 404, 302])
def test_rejected_rows_are_retried_with_the_rotated_key(rows: Path, status: int, tmp_path: Path) -> None:
    serve, infers, keys = v2(), count(1), []
    (tmp_path / "key").write_text("first-key-of-sixteen")

    def handle(call: Call) -> Answer | None:
        if call.path.endswith("/infer"):
            keys.append(call.headers["authorization"])
            number = next(infers)
            if number == 2:
                (tmp_path / "key").write_text("second-key-of-sixteen")
            if number in {2, 3}:
                return Answer(status, b"expired")
        return serve(call)

    with running(handle) as server:
        ended = batch(server.url, rows, "--api-key-file", str(tmp_path / "key"))

    assert ended.returncode == 0, ended.stderr
    assert answered(rows) == [(each, [each + 1.0] * 3, None) for each in range(ROWS)]
    renewed = "second" if status in {401, 403} else "first"
    assert (keys[0], keys[-1]) == ("Bearer first-key-of-sixteen", f"Bearer {renewed}-key-of-sixteen")
    assert "event=service_refuses" in ended.stderr


def test_a_service_that_is_not_there_is_named(rows: Path) -> None:
    with running(v2()) as server:
        url = server.url
    ended = batch(url, rows)

    assert ended.returncode == 1
    assert ended.stderr.startswith(f"shoal: the model is unavailable: {url}: cannot reach")
    assert len(ended.stderr.splitlines()) == 1


def test_a_model_that_is_not_there_is_named(rows: Path) -> None:
    with running(v2()) as server:
        ended = batch(server.url, rows, "--model", "absent")

    assert ended.returncode == 1
    assert "absent" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "runtime.threads=1"), "--set applies to a model started here"),
        (("--api-key-file", "absent"), "cannot read a key from"),
    ],
)
def test_what_has_no_effect_on_a_service_is_refused(rows: Path, options: tuple[str, ...], said: str) -> None:
    with running(v2()) as server:
        ended = batch(server.url, rows, *options)

    assert ended.returncode in {1, 2}
    assert said in ended.stderr


def test_a_model_or_a_service_must_be_said(rows: Path) -> None:
    command = [sys.executable, "-m", "shoal", "batch", "--input", str(rows), "--output", f"{rows.parent}/out"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 2
    assert ended.stderr == "shoal: there is no model. Pass --model PATH, or --to URL of a service\n"


def test_the_model_of_the_other_tests_is_what_they_take_it_for() -> None:
    assert ADDER["parameters"]["max_batch_size"] == 32
