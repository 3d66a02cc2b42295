"""Large batches, by both clients, against a server that refuses as real ones do."""

import threading
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from tests.client.fake_server import ADDER, Answer, Call, json_answer, metadata, running, tensor, v2
from tests.client.test_client import Ask, Awaiting, Blocking


@pytest.fixture(params=[Blocking(), Awaiting()], ids=["Client", "AsyncClient"])
def ask(request: pytest.FixtureRequest) -> Ask:
    chosen: Ask = request.param
    return chosen


def infers(server: Any) -> list[Call]:
    return [call for call in server.calls if call.path.endswith("/infer")]


def test_a_large_batch_goes_out_in_portions_and_comes_back_in_order(ask: Ask) -> None:
    rows = np.arange(3000, dtype="f4").reshape(1000, 3)
    with running(v2()) as server:
        answers = ask(server.url, "predict_batch", rows)

    assert np.array_equal(answers, rows + 1)
    assert 30 < len(infers(server)) < 40


def test_several_portions_are_in_flight_but_no_more_than_four(ask: Ask) -> None:
    healthy, lock = v2(), threading.Lock()
    inside, most, several = 0, 0, threading.Event()

    def counted(call: Call) -> Answer | None:
        nonlocal inside, most
        if not call.path.endswith("/infer"):
            return healthy(call)
        with lock:
            inside += 1
            most = max(most, inside)
            if inside == 4:
                several.set()
        if len(infers(server)) > 9:  # by then it goes as fast as it may
            several.wait(10)
        with lock:
            inside -= 1
        return healthy(call)

    with running(counted) as server:
        assert len(ask(server.url, "predict_batch", np.zeros((2000, 3)))) == 2000
    assert several.is_set()
    assert most == 4


def test_what_the_server_refuses_goes_again_smaller_or_later(ask: Ask) -> None:
    healthy = v2()
    refused: list[Call] = []

    def strict(call: Call) -> Answer | None:
        if not call.path.endswith("/infer"):
            return healthy(call)
        if len(call.body) > 300:
            return json_answer({"error": "the body is over the limit"}, 413, **{"X-Shoal-Executed": "no"})
        if len(refused) < 2:
            refused.append(call)
            return json_answer({"error": "queue is full"}, 503, **{"Retry-After": "0", "X-Shoal-Executed": "no"})
        return healthy(call)

    rows = np.arange(300, dtype="f4").reshape(100, 3)
    with running(strict) as server:
        assert np.array_equal(ask(server.url, "predict_batch", rows), rows + 1)
    assert len(refused) == 2


def test_each_portion_has_its_own_deadline(ask: Ask) -> None:
    with running(v2()) as server:
        ask(server.url, "predict_batch", np.zeros((300, 3)), timeout_s=20.0)

    reported = [int(call.headers["x-request-timeout-ms"]) for call in infers(server)]
    assert len(reported) > 8
    assert min(reported) > 18_000, "each portion has the whole time"


def test_a_time_for_the_whole_call_holds() -> None:
    healthy, gate = v2(), threading.Event()

    def stuck(call: Call) -> Answer | None:
        if call.path.endswith("/infer") and len(infers(server)) > 3:
            gate.wait(20)
        return healthy(call)

    with running(stuck) as server, shoal.Client(server.url) as client:
        try:
            with pytest.raises(shoal.DeadlineExceeded):
                client.predict_batch(np.zeros((500, 3)), timeout_s=1.0)
        finally:
            gate.set()


def test_progress_is_told_in_rows() -> None:
    reported: list[tuple[int, int]] = []
    with running(v2()) as server, shoal.Client(server.url) as client:
        client.predict_batch(np.zeros((100, 3)), progress=lambda answered, rows: reported.append((answered, rows)))

    assert reported[0] == (8, 100)
    assert reported[-1] == (100, 100)
    assert reported == sorted(reported)


def test_progress_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with running(v2()) as server, shoal.Client(server.url) as client:
        client.predict_batch(np.zeros((100, 3)), progress=True)

    assert "100" in capsys.readouterr().err


def test_files_are_sent_as_what_they_hold(tmp_path: Path, ask: Ask) -> None:
    model = metadata([tensor("file", "BYTES", [-1])], [tensor("bytes", "INT64", [-1])])

    def sizes(inputs: Any) -> Any:
        return {"bytes": ("INT64", np.array([len(each) for each in inputs["file"]]))}

    file = tmp_path / "five.bin"
    file.write_bytes(b"12345")
    with running(v2(model, sizes)) as server:
        assert ask(server.url, "predict", file) == 5
        assert ask(server.url, "predict", {"file": BytesIO(b"123")}) == 3
        with file.open("rb") as opened:
            assert ask(server.url, "predict_batch", [file, BytesIO(b"1"), opened]).tolist() == [5, 1, 5]


def test_the_models_own_limit_is_what_a_portion_holds(ask: Ask) -> None:
    model = {**ADDER, "parameters": {"max_batch_size": 4}}
    with running(v2(model)) as server:
        assert len(ask(server.url, "predict_batch", np.zeros((10, 3)))) == 10
    assert len(infers(server)) == 3
