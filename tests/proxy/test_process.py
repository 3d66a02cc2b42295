"""``python -m shoal_proxy`` as a process: what it imports, how it starts, and how it stops."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "grpc", "google.protobuf", "kopf", "kubernetes", "transformers", "pandas", "yaml", "httpx")
PROXY = [sys.executable, "-m", "shoal_proxy"]


def start(tmp_path: Path, **variables: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "SHOAL_PROXY_LISTEN": "127.0.0.1:0",
        "SHOAL_PROXY_ADMIN_LISTEN": "127.0.0.1:0",
        "SHOAL_PROXY_RUNTIME": f"unix:{tmp_path}/runtime.sock",
        **variables,
    }
    return subprocess.Popen(PROXY, env=environment, stderr=subprocess.PIPE, text=True)


def test_importing_the_proxy_brings_nothing_heavy() -> None:
    code = f"import sys, shoal_proxy.__main__; print([name for name in {HEAVY!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_exit_status_0(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path)
    assert process.stderr is not None
    assert "event=listening" in process.stderr.readline()
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


@pytest.mark.integration
@pytest.mark.parametrize(
    ("listen", "reach"),
    [
        ("127.0.0.1:0", "this_machine"),
        (":0", "every_interface"),
        ("0.0.0.0:0", "every_interface"),
        ("[::]:0", "every_interface"),
    ],
)
def test_the_log_states_from_where_clients_can_connect(tmp_path: Path, listen: str, reach: str) -> None:
    process = start(tmp_path, SHOAL_PROXY_LISTEN=listen)
    assert process.stderr is not None
    assert f" reach={reach} " in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    rest = process.stderr.read()  # not communicate(), which passes by what readline() has read ahead
    process.stderr.close()
    assert process.wait(timeout=20) == 0
    warned = "event=listening_everywhere setting=SHOAL_PROXY_LISTEN address=" in rest
    assert warned == (reach == "every_interface")
    assert "admin_reach" not in rest


@pytest.mark.integration
@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"SHOAL_PROXY_LISTENS": ":1"}, "no setting SHOAL_PROXY_LISTENS; did you mean SHOAL_PROXY_LISTEN?"),
        ({"SHOAL_BATCHING_MAX_BATCH_SIZE": "0"}, "SHOAL_BATCHING_MAX_BATCH_SIZE must be 1 to 65536, not '0'"),
        ({"SHOAL_PROXY_LISTEN": "nowhere"}, "SHOAL_PROXY_LISTEN must be HOST:PORT or unix:PATH, not 'nowhere'"),
        ({"SHOAL_QUEUE_MAX_ROWS": "5"}, "SHOAL_QUEUE_MAX_ROWS must be at least SHOAL_BATCHING_MAX_BATCH_SIZE (32)"),
    ],
)
def test_settings_out_of_range_stop_the_start(tmp_path: Path, variables: dict[str, str], words: str) -> None:
    _, errors = (process := start(tmp_path, **variables)).communicate(timeout=20)
    assert process.returncode == 2
    assert words in errors
    assert "Traceback" not in errors


@pytest.mark.integration
def test_a_taken_port_of_grpc_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "{}:{}".format(*taken.getsockname())
        process = start(tmp_path, SHOAL_PROXY_GRPC_PORT=address.rpartition(":")[2])
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (1, f"shoal-proxy: cannot listen on {address}: gRPC's port is in use\n")


@pytest.mark.integration
def test_what_grpc_needs_is_named_where_it_is_missing(tmp_path: Path) -> None:
    (tmp_path / "grpc.py").write_text("raise ModuleNotFoundError(\"No module named 'grpc'\", name='grpc')")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    process = start(tmp_path, SHOAL_PROXY_GRPC_PORT="0", PYTHONPATH=path)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert errors.splitlines() == ["shoal-proxy: No module named 'grpc': pip install \"shoal[grpc]\""]


@pytest.mark.integration
def test_a_taken_port_is_reported_in_one_line(tmp_path: Path) -> None:
    first = start(tmp_path)
    assert first.stderr is not None
    address = first.stderr.readline().split("address=")[1].split()[0]
    try:
        second = start(tmp_path, SHOAL_PROXY_LISTEN=address)
        _, errors = second.communicate(timeout=20)
        assert second.returncode == 1
        assert f"cannot listen on {address}: Address already in use" in errors
    finally:
        first.terminate()
        first.communicate(timeout=20)
