"""The runtime as a process, on real sockets."""

import contextlib
import gc
import http.client
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal_runtime.__main__ import main
from tests.runtime.fakes import UnixConnection, infer_body

HANDLER = """
import os, threading, time
from pathlib import Path
from shoal_runtime import TensorSpec

class Adder:
    inputs = [TensorSpec("x", "FP32", [-1, 2])]
    outputs = [TensorSpec("y", "FP32", [-1, 2])]

    def load(self, context):
        self.folder = Path(os.environ["TEST_FOLDER"])
        if context.parameters.get("slow"):
            (self.folder / "loading").touch()
            while not (self.folder / "go").exists():
                time.sleep(0.01)

    def forward(self, batch):
        if (batch["x"] == 98).any():
            raise KeyboardInterrupt("ninety-eight")
        if (batch["x"] == 99).any():
            threading.Event().wait()
        return batch["x"] + 1

    def unload(self):
        (self.folder / "unloaded").touch()
"""
X = np.array([[1, 2]], dtype=np.float32)
LIMIT_S = 60


class Process:
    def __init__(self, folder: Path, **environ: str) -> None:
        self.socket = str(folder / "s")
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shoal_runtime"],
            env={
                **os.environ,
                "SHOAL_MODEL_URI": str(folder / "adder"),
                "SHOAL_RUNTIME_LISTEN": f"unix:{self.socket}",
                "SHOAL_RUNTIME_DEVICE": "cpu",
                "TEST_FOLDER": str(folder),
                **environ,
            },
            stderr=subprocess.PIPE,
            text=True,
        )

    def connect(self) -> UnixConnection:
        """Connect as soon as the process listens."""
        end_s = time.monotonic() + LIMIT_S
        while time.monotonic() < end_s and self.process.poll() is None:
            connection = UnixConnection(self.socket)
            with contextlib.suppress(OSError):
                connection.connect()
                return connection
            connection.close()
            select.select([], [], [], 0.02)
        raise AssertionError(self.finish())

    def ready(self) -> UnixConnection:
        """Connect, and return when the model is ready."""
        connection = self.connect()
        end_s = time.monotonic() + LIMIT_S
        while time.monotonic() < end_s:
            if ask(connection, "/v2/health/ready")[0] == 200:
                return connection
            select.select([], [], [], 0.02)
        raise AssertionError("not ready in time")

    def finish(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and what was output."""
        _, text = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, text


def ask(connection: UnixConnection, path: str) -> tuple[int, Any]:
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def infer(connection: UnixConnection, array: Any) -> tuple[int, bytes]:
    body, headers = infer_body("x", array, "FP32")
    connection.request("POST", "/v2/models/adder/infer", body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    (tmp_path / "adder").mkdir()
    (tmp_path / "adder" / "handler.py").write_text(textwrap.dedent(HANDLER))
    started: list[Process] = []

    def start_it(**environ: str) -> Process:
        started.append(Process(tmp_path, **environ))
        return started[-1]

    yield start_it
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()


@pytest.mark.integration
def test_it_serves_and_stops_when_the_last_connection_closes(start: Callable[..., Process]) -> None:
    process = start()
    connection = process.ready()
    process.process.send_signal(signal.SIGTERM)

    for _ in range(3):
        status, body = infer(connection, X)
        assert status == 200
        assert body.endswith((X + 1).tobytes())
    assert ask(connection, "/v2/health/ready")[0] == 200
    connection.close()

    code, output = process.finish()
    assert code == 0, output
    assert (process.folder / "unloaded").exists()
    assert not os.path.exists(process.socket)


@pytest.mark.integration
def test_it_stops_at_once_without_connections(start: Callable[..., Process]) -> None:
    process = start()
    process.ready().close()

    process.process.send_signal(signal.SIGTERM)

    assert process.finish()[0] == 0


@pytest.mark.integration
def test_it_limits_the_wait_for_connections(start: Callable[..., Process]) -> None:
    process = start(SHOAL_RUNTIME_SHUTDOWN_TIMEOUT_S="0.1")
    connection = process.ready()

    process.process.send_signal(signal.SIGTERM)

    code, output = process.finish()
    connection.close()
    assert code == 0
    assert "event=connections_still_open count=1" in output


@pytest.mark.integration
def test_it_listens_and_stops_while_it_loads(start: Callable[..., Process]) -> None:
    process = start(SHOAL_MODEL_PARAMETERS='{"slow": true}')
    connection = process.connect()
    end_s = time.monotonic() + LIMIT_S
    while not (process.folder / "loading").exists() and time.monotonic() < end_s:
        select.select([], [], [], 0.02)

    assert ask(connection, "/v2/health/live")[0] == 200
    assert ask(connection, "/v2/health/ready") == (503, {"ready": False, "reason": "loading"})
    connection.close()
    process.process.send_signal(signal.SIGTERM)

    assert process.finish()[0] == 0


@pytest.mark.integration
def test_a_stuck_forward_ends_the_process(start: Callable[..., Process]) -> None:
    process = start(SHOAL_RUNTIME_FORWARD_TIMEOUT_S="0.2")
    connection = process.ready()
    waiting = process.connect()
    answers: list[tuple[int, bytes]] = []
    other = threading.Thread(target=lambda: answers.append(infer(waiting, X)))

    status, body = infer(connection, 99 * X / X)
    other.start()
    other.join()

    assert (status, json.loads(body)["code"]) == (503, "DEVICE_LOST")
    assert answers[0][0] == 503
    assert json.loads(answers[0][1])["code"] == "DEVICE_LOST"
    code, output = process.finish()
    connection.close()
    waiting.close()
    assert code == 4
    assert (
        output.strip()
        .splitlines()[-1]
        .startswith("shoal_runtime: the runtime cannot continue: a forward runs longer than 0.2 s")
    )


@pytest.mark.integration
def test_an_interrupt_in_forward_fails_its_batch_and_shows_its_traceback(start: Callable[..., Process]) -> None:
    process = start()
    connection = process.ready()

    status, body = infer(connection, 98 * X / X)

    assert (status, json.loads(body)["error"]) == (500, "forward raised KeyboardInterrupt: ninety-eight")
    assert infer(connection, X)[0] == 200
    connection.close()
    process.process.send_signal(signal.SIGTERM)
    code, output = process.finish()
    assert code == 0
    assert 'raise KeyboardInterrupt("ninety-eight")' in output


PICKY = """
import ctypes, sys, threading, time
from shoal_runtime import TensorSpec

class Picky:
    inputs = [TensorSpec("x", "FP32", [-1, 2])]
    outputs = [TensorSpec("y", "FP32", [-1, 2])]

    def preprocess(self, row):
        if row[0] == 98:
            raise KeyboardInterrupt
        return row

    def forward(self, batch):
        if (batch == 97).any():
            threading.Thread(target=end_the_device_s_thread, args=[threading.get_ident()]).start()
        return batch

def end_the_device_s_thread(ident):
    # What is raised inside a call is that call's; it has to be between two.
    while frame := sys._current_frames().get(ident):
        if frame.f_code.co_name != "_launch_calls":
            time.sleep(0.001)
            continue
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(SystemExit))
        time.sleep(0.01)
"""


@pytest.mark.integration
def test_an_interrupt_in_preprocess_fails_its_row(start: Callable[..., Process], tmp_path: Path) -> None:
    (tmp_path / "adder" / "handler.py").write_text(PICKY)
    process = start()
    connection = process.ready()

    status, body = infer(connection, 98 * X / X)

    assert status == 200
    assert b'"status\\":500,\\"message\\":\\"KeyboardInterrupt' in body
    assert infer(connection, X)[0] == 200
    connection.close()
    process.process.send_signal(signal.SIGTERM)
    assert process.finish()[0] == 0


@pytest.mark.integration
def test_a_device_s_thread_that_dies_ends_the_process_with_the_true_reason(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    (tmp_path / "adder" / "handler.py").write_text(PICKY)
    process = start()
    connection = process.ready()
    infer(connection, 97 * X / X)

    # The thread takes what was raised in it with its next call, or, on a busy machine, with a later one.
    with contextlib.suppress(OSError, http.client.HTTPException):
        for _ in range(10_000):
            infer(connection, X)

    code, output = process.finish()
    connection.close()
    assert code == 4
    assert (
        output.strip().splitlines()[-1]
        == "shoal_runtime: the runtime cannot continue: the device's thread ended: SystemExit"
    )


@pytest.mark.integration
def test_a_load_without_an_end_ends_the_process(start: Callable[..., Process]) -> None:
    code, output = start(SHOAL_MODEL_PARAMETERS='{"slow": true}', SHOAL_MODEL_LOAD_TIMEOUT_S="0.5").finish()

    assert code == 3
    assert output.strip().splitlines()[-1] == (
        "shoal_runtime: the model cannot be loaded: loading takes longer than 0.5 s (SHOAL_MODEL_LOAD_TIMEOUT_S)"
    )


@pytest.mark.integration
def test_a_missing_model_ends_the_process_with_one_line(
    start: Callable[..., Process],
) -> None:
    code, output = start(SHOAL_MODEL_URI="/no/such/model").finish()

    assert code == 3
    assert output.strip().splitlines()[-1].endswith("the model cannot be loaded: /no/such/model does not exist")
    assert "Traceback" not in output


@pytest.mark.integration
def test_a_model_that_violates_its_signature_never_becomes_ready(start: Callable[..., Process], tmp_path: Path) -> None:
    handler = tmp_path / "adder" / "handler.py"
    handler.write_text(handler.read_text().replace('return batch["x"] + 1', "return 1.0"))

    code, output = start().finish()

    assert code == 3
    assert "forward returned float for output y" in output.strip().splitlines()[-1]
    assert "Traceback" not in output


@pytest.mark.integration
def test_a_handler_that_raises_shows_its_own_traceback_first(start: Callable[..., Process], tmp_path: Path) -> None:
    (tmp_path / "adder" / "handler.py").write_text("def broken():\n    1 / 0\nbroken()\n")

    code, output = start().finish()

    assert code == 3
    assert 'handler.py", line 2, in broken' in output
    assert "importlib" not in output
    assert output.strip().splitlines()[-1].endswith("importing handler.py failed: ZeroDivisionError: division by zero")


COLLECTED = """
import gc, torch
from shoal_runtime import TensorSpec

class Adder:
    inputs = [TensorSpec("x", "FP32", [-1, 2])]
    outputs = [TensorSpec("y", "FP32", [-1, 2])]

    def load(self, context):
        self.loading = gc.get_threshold()[0]

    def forward(self, batch):
        return batch["x"] * 0 + torch.tensor([self.loading, gc.get_threshold()[0]])
"""


@pytest.mark.integration
def test_garbage_is_collected_seldom_while_loading_and_normally_while_serving(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    (tmp_path / "adder" / "handler.py").write_text(COLLECTED)
    connection = start().ready()

    loading, serving = np.frombuffer(infer(connection, X)[1][-8:], np.float32)
    connection.close()

    assert serving == gc.get_threshold()[0]
    assert loading > 10 * serving


@pytest.mark.integration
def test_it_serves_over_tcp(start: Callable[..., Process]) -> None:
    process = start(SHOAL_RUNTIME_LISTEN="127.0.0.1:0")
    assert process.process.stderr is not None
    line = process.process.stderr.readline()

    process.process.send_signal(signal.SIGTERM)

    assert "listening address=127.0.0.1:" in line
    assert "reach=this_machine" in line
    assert process.finish()[0] == 0


def test_help_lists_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"], {}) == 0
    assert "SHOAL_RUNTIME_LISTEN" in capsys.readouterr().out


def test_unknown_arguments_are_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--port", "80"], {}) == 2
    assert "Settings are environment variables" in capsys.readouterr().err


@pytest.mark.integration
def test_an_invalid_setting_ends_the_process_with_one_line(start: Callable[..., Process]) -> None:
    code, output = start(SHOAL_RUNTIME_DTYPE="int8").finish()

    assert code == 2
    assert len(output.strip().splitlines()) == 1
    assert "SHOAL_RUNTIME_DTYPE must be Auto, Float32, BFloat16, Float16, not 'int8'" in output


@pytest.mark.integration
@pytest.mark.parametrize("module", ["", ".settings", ".command_line", ".storage.fetching", ".http.server", ".serving"])
def test_modules_used_before_loading_do_not_import_torch(module: str) -> None:
    code = f"import sys, shoal_runtime{module}; assert 'torch' not in sys.modules"

    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT_S)


@pytest.mark.integration
def test_a_start_does_not_import_clients_and_progress_bars() -> None:
    imported = "shoal_runtime.serving, shoal_runtime.startup.starting, shoal_runtime.execution.pipeline"
    code = f"import sys, {imported}; assert not {{'httpx', 'tqdm'}} & set(sys.modules)"

    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT_S)


@pytest.mark.integration
def test_the_log_shows_the_steps_of_a_start(start: Callable[..., Process]) -> None:
    process = start()
    process.ready().close()
    process.process.terminate()
    _, output = process.finish()

    events = [
        output.index(f"event={name} ") for name in ("listening", "libraries_imported", "model_loaded", "model_ready")
    ]
    assert events == sorted(events)
