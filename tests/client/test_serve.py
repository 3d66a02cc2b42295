"""``shoal serve`` as a user starts it, with small fakes as runtime and proxy."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import orjson
import pytest

from shoal import Client
from shoal.commands import ADMIN_PORT

ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests" / "client" / "fake_processes"
TIMEOUT_S = 30.0

pytestmark = pytest.mark.integration


class Served:
    """A running ``shoal serve`` and what its fakes wrote down."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.events_file = folder / "events"
        self.model = folder / "adder"
        self.model.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shoal", "serve", str(self.model), "--port", "0", *arguments],
            env=self._environment(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        paths = (str(FAKES), str(ROOT), str(ROOT / "client"), str(ROOT / "schema"))
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        return {
            **inherited,
            "PYTHONPATH": os.pathsep.join(paths),
            "FAKE_EVENTS": str(self.events_file),
            "TMPDIR": str(self.model.parent),
            **environment,
        }

    def read_until(self, text: str) -> str:
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if text in line:
                return "".join(lines)
        raise AssertionError(f"{text!r} never came: {''.join(lines)}")

    def rest(self) -> str:
        output, _ = self.process.communicate(timeout=TIMEOUT_S)
        return output

    def events(self) -> list[str]:
        return self.events_file.read_text().splitlines()

    def wait_for_event(self, event: str) -> None:
        """Poll for an event in the file."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while not self.events_file.exists() or event not in self.events():
            assert time.monotonic() < deadline_s, f"{event} never came"
            select.select([], [], [], 0.02)

    def pids(self) -> list[int]:
        return [int(event.rpartition(" ")[2]) for event in self.events() if " started " in event]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        for pid in self.pids() if self.events_file.exists() else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    running: list[Served] = []

    def started(*arguments: str, **environment: str) -> Served:
        running.append(Served(tmp_path, *arguments, **environment))
        return running[-1]

    yield started
    for served in running:
        served.close()


Start = Callable[..., Served]


def wait_for_end(pids: list[int]) -> None:
    """Wait until processes that are not our children are gone."""
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        with os.fdopen(handle):
            ended, _, _ = select.select([handle], [], [], TIMEOUT_S)
            assert ended, f"process {pid} lives on"


def url_in(output: str) -> str:
    return output.partition("listening on ")[2].partition(",")[0]


def test_a_model_is_served_and_the_first_request_shown(start: Start) -> None:
    served = start("--set", "batching.maxBatchSize=64")

    output = served.read_until("Ctrl-C stops")

    assert "serving adder from" in output
    assert "curl -H 'Content-Type: application/json' -d '{\"instances\":[[0.5,0.5,0.5]]}'" in output
    with Client(url_in(output), "adder") as client:
        assert client.predict([1, 2, 3]).tolist() == [2, 3, 4]
    assert "runtime SHOAL_BATCHING_MAX_BATCH_SIZE=64" in served.events()
    assert "gRPC" not in output


def test_the_proxy_s_process_holds_no_credentials(start: Start) -> None:
    served = start(HF_TOKEN="hf-secret", MLFLOW_TRACKING_URI="http://user:pw@mlflow:5000")
    served.read_until("Ctrl-C stops")

    by_process = {event.split()[0]: int(event.split()[-1]) for event in served.events() if " started " in event}
    printed = {name: Path(f"/proc/{pid}/environ").read_text() for name, pid in by_process.items()}

    assert "hf-secret" in printed["runtime"]
    assert not any(word in printed["proxy"] for word in ("hf-secret", "user:pw", "SHOAL_MODEL_URI"))


def test_a_port_for_grpc_is_found_given_to_the_proxy_and_told(start: Start) -> None:
    served = start("--grpc-port", "0", "--admin-port", "0")

    output = served.read_until("Ctrl-C stops")

    port = output.partition("gRPC on 127.0.0.1:")[2].split()[0]
    assert f"proxy SHOAL_PROXY_GRPC_PORT={port}" in served.events()
    assert f"runtime SHOAL_MODEL_URI={served.model}" in served.events()
    assert "runtime SHOAL_MODEL_NAME=adder" in served.events()


def test_a_page_to_try_it_is_on_unless_it_was_turned_off(start: Start) -> None:
    output = start().read_until("Ctrl-C stops")

    assert f"  {url_in(output)}/docs in a browser\n" in output


def test_a_page_that_was_turned_off_is_not_named(start: Start) -> None:
    assert "/docs" not in start("--set", "proxy.docs=false").read_until("Ctrl-C stops")


def listener_on(port: int) -> socket.socket:
    """Listen on a port as soon as the servers of other tests leave it."""
    while True:
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", port))
        time.sleep(0.05)


def test_it_says_where_metrics_are_when_the_usual_port_is_in_use(start: Start) -> None:
    with listener_on(ADMIN_PORT):
        output = start().read_until("Ctrl-C stops")

    admin_url = output.partition("metrics on ")[2].splitlines()[0]
    assert f"port {ADMIN_PORT} of 127.0.0.1 is in use, so metrics are on {admin_url}\n" in output


def test_a_proxy_that_is_not_compiled_is_named_once(start: Start) -> None:
    output = start().read_until("Ctrl-C stops")

    assert output.count("SHOAL_COMPILE=1 pip install .") == 1


def test_what_a_model_prints_is_seen_at_once(start: Start) -> None:
    start(FAKE_RUNTIME="prints").read_until("printed by the model")


def test_it_says_that_every_interface_is_open(start: Start) -> None:
    output = start("--host", "0.0.0.0").read_until("Ctrl-C stops")

    assert "listening on http://127.0.0.1:" in output
    assert "0.0.0.0 is every interface" in output


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGHUP, 0)])
def test_a_signal_stops_the_proxy_and_then_the_runtime(start: Start, number: signal.Signals, status: int) -> None:
    served = start()
    served.read_until("Ctrl-C stops")

    served.process.send_signal(number)

    assert served.process.wait(TIMEOUT_S) == status
    assert served.events()[-2:] == ["proxy stopped", "runtime stopped"]


def test_a_reader_of_the_output_that_leaves_stops_nothing(start: Start) -> None:
    served = start(FAKE_RUNTIME="loses its device once")
    served.read_until("serving adder")
    assert served.process.stdout is not None
    served.process.stdout.close()
    served.wait_for_event("runtime ready")

    served.process.send_signal(signal.SIGTERM)

    assert served.process.wait(TIMEOUT_S) == 0
    assert served.events()[-1] == "runtime stopped"


def test_a_second_signal_kills(start: Start) -> None:
    served = start(FAKE_PROXY="hangs")
    served.read_until("Ctrl-C stops")

    served.process.send_signal(signal.SIGINT)
    served.read_until("stopping")
    served.process.send_signal(signal.SIGINT)

    assert served.process.wait(TIMEOUT_S) == 130
    wait_for_end(served.pids())


def test_killing_the_command_leaves_no_process_behind(start: Start) -> None:
    served = start(FAKE_PROXY="hangs")
    served.read_until("Ctrl-C stops")

    served.process.kill()

    assert len(served.pids()) == 2
    wait_for_end(served.pids())


def test_a_model_that_cannot_be_loaded_ends_the_command_with_the_runtimes_last_line(
    start: Start,
) -> None:
    served = start(FAKE_RUNTIME="cannot load")

    output = served.rest()

    assert served.process.returncode == 1
    assert output.splitlines()[-1] == "shoal: the model cannot be loaded: model.pt2 is no exported program"
    assert output.count("no exported program") == 1
    assert [each for each in served.events() if each.startswith("runtime started")][1:] == []
    wait_for_end(served.pids())


def test_a_setting_that_a_process_refuses_ends_the_command_with_the_fields_name(
    start: Start,
) -> None:
    served = start("--set", "queue.maxRows=64", FAKE_PROXY="refuses")

    output = served.rest()

    assert served.process.returncode == 1
    assert "queue.maxRows (SHOAL_QUEUE_MAX_ROWS) must be at least the max batch size" in output
    assert "runtime stopped" in served.events() or "runtime ready" not in served.events()


def test_a_runtime_that_dies_is_started_again(start: Start) -> None:
    served = start()
    served.read_until("Ctrl-C stops")
    runtime_pid = int(next(e.split()[2] for e in served.events() if "runtime started" in e))

    os.kill(runtime_pid, signal.SIGKILL)

    output = served.read_until("ready after")
    assert "the runtime was killed by SIGKILL" in output
    assert "restarting it in 0.5 s" in output
    assert len(served.pids()) == 3


def test_a_dead_runtimes_children_that_hold_its_output_delay_neither_its_next_start_nor_the_end(start: Start) -> None:
    """One of them in a session of its own, which is not ended with the runtime."""
    served = start(FAKE_RUNTIME="leaves children")
    served.read_until("Ctrl-C stops")
    runtime_pid = int(next(e.split()[2] for e in served.events() if "runtime started" in e))

    os.kill(runtime_pid, signal.SIGKILL)
    served.read_until("ready after")
    served.process.send_signal(signal.SIGINT)

    assert served.process.wait(TIMEOUT_S) == 130
    assert served.events()[-2:] == ["proxy stopped", "runtime stopped"]


def test_output_that_nobody_reads_stops_neither_the_processes_nor_the_end(start: Start) -> None:
    """Of 4 MiB, which no pipe holds."""
    served = start(FAKE_RUNTIME="writes a lot")
    served.wait_for_event("runtime ready")

    served.process.send_signal(signal.SIGTERM)

    assert served.process.wait(TIMEOUT_S) == 0
    assert served.events()[-1] == "runtime stopped"


def test_two_signals_end_it_with_a_process_that_hangs_and_output_that_nobody_reads(start: Start) -> None:
    served = start(FAKE_RUNTIME="writes a lot", FAKE_PROXY="hangs")
    served.wait_for_event("runtime ready")
    served.wait_for_event("proxy listening")

    served.process.send_signal(signal.SIGTERM)
    served.wait_for_event("proxy ignored SIGTERM")
    served.process.send_signal(signal.SIGTERM)

    assert served.process.wait(TIMEOUT_S) == 130


def test_a_runtime_that_each_of_three_times_a_signal_kills_while_it_loads_ends_the_command(start: Start) -> None:
    served = start(FAKE_RUNTIME="crashes while it loads")

    output = served.rest()

    assert served.process.returncode == 1
    assert output.count("the runtime was killed by SIGSEGV; restarting it in ") == 2
    assert "shoal: the runtime was killed by SIGSEGV 3 times" in output
    assert len([event for event in served.events() if event.startswith("runtime started")]) == 3


def test_a_runtime_that_loses_its_device_while_it_loads_is_started_again(start: Start) -> None:
    served = start(FAKE_RUNTIME="loses its device once")

    output = served.read_until("Ctrl-C stops")

    assert "the runtime exited with status 4: the device is lost; restarting it" in output


def test_quiet_prints_nothing_while_all_is_well(start: Start) -> None:
    served = start("--quiet")
    served.wait_for_event("runtime ready")
    served.process.send_signal(signal.SIGINT)

    assert served.rest() == ""
    assert served.process.returncode == 130


def test_ctrl_c_before_it_is_ready_stops_both(start: Start) -> None:
    served = start()
    served.read_until("serving adder")

    served.process.send_signal(signal.SIGINT)

    assert served.process.wait(TIMEOUT_S) == 130
    wait_for_end(served.pids() if served.events_file.exists() else [])


def test_a_drained_proxy_is_not_started_again_but_stops_the_server(start: Start) -> None:
    served = start()
    served.read_until("Ctrl-C stops")
    [proxy] = [int(event.split()[2]) for event in served.events() if event.startswith("proxy started ")]

    os.kill(proxy, signal.SIGTERM)  # it ends as after POST /drain: in order, with 0

    output = served.rest()
    assert served.process.returncode == 0
    assert output.splitlines()[-2:] == ["stopping: the proxy was drained", "stopped"]
    assert [event for event in served.events() if event.endswith(" stopped")] == ["proxy stopped", "runtime stopped"]


def test_ctrl_c_before_its_signals_are_caught_starts_nothing(tmp_path: Path) -> None:
    """Between the loop's own handler and ours a Ctrl-C cancels: no process may be on its way then."""
    script = f"""
import os, signal, sys, tempfile
from shoal.__main__ import main
made = tempfile.TemporaryDirectory
def interrupted(*given, **named):
    os.kill(os.getpid(), signal.SIGINT)
    return made(*given, **named)
tempfile.TemporaryDirectory = interrupted
sys.exit(main(["serve", {str(tmp_path)!r}, "--port", "0"]))
"""
    events = tmp_path / "events"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(FAKES), str(ROOT))), "FAKE_EVENTS": str(events)}
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, timeout=TIMEOUT_S, check=False
    )

    assert (ended.returncode, ended.stderr) == (130, b"")
    assert not events.exists()


def test_programs_get_an_object_a_line(start: Start) -> None:
    served = start("--json")
    output = served.read_until("Ctrl-C stops")

    printed = [orjson.loads(line) for line in output.splitlines() if line.startswith("{")]

    facts = {name: value for each in printed for name, value in each.items()}
    assert facts["name"] == "adder"
    assert facts["url"] in facts["first_requests"][0]
    assert facts["ready_after_s"] > 0
    assert all(each["message"] for each in printed)


def test_a_field_without_effect_here_is_named_once_as_it_was_written(start: Start) -> None:
    served = start("--set", "scaling.maxReplicas=3", "--set", "scaling.maxReplicas=4")

    printed = served.read_until("without effect")

    assert printed.endswith("without effect on one machine: scaling.maxReplicas\n")
