import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson
import pytest

from shoal.__main__ import main
from shoal.command_line import COMMANDS
from shoal.ports import claimed
from tests.client.fake_server import FakeServer, metadata, running, tensor, v2

JSON_MODEL = metadata(
    [tensor("q", "BYTES", [-1], content_type="application/json")],
    [tensor("a", "BYTES", [-1], content_type="application/json")],
)
ECHO = v2(JSON_MODEL, lambda inputs: {"a": ("BYTES", inputs["q"])})


@pytest.fixture
def adder() -> Iterator[FakeServer]:
    with running(v2()) as server:
        yield server


def test_predict_shows_the_answer(adder: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", adder.url, "--data", "[1, 2, 3]"]) == 0

    assert capsys.readouterr().out == "y: [2., 3., 4.]\n"


def test_predict_writes_json_for_programs(adder: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", adder.url, "--data", "[1, 2, 3]", "--json"]) == 0

    assert orjson.loads(capsys.readouterr().out) == [2, 3, 4]


@pytest.mark.parametrize("name", ["item.npy", "item.npz", "item.json"])
def test_predict_reads_an_item_from_a_file(
    adder: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file = tmp_path / name
    if name == "item.npy":
        np.save(file, np.array([1, 2, 3]))
    elif name == "item.npz":
        np.savez(file, x=np.array([1, 2, 3]))
    else:
        file.write_text("[1, 2, 3]")

    assert main(["predict", adder.url, str(file)]) == 0
    assert capsys.readouterr().out == "y: [2., 3., 4.]\n"


def test_predict_takes_its_options_before_the_file_too(
    adder: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "item.json"
    file.write_text("[1, 2, 3]")

    for options in (["--json", str(file)], ["--timeout", "5", str(file), "--json"]):
        assert main(["predict", adder.url, *options]) == 0
        assert orjson.loads(capsys.readouterr().out) == [2, 3, 4]


def test_predict_sends_text_and_other_files_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "question"
    file.write_bytes(b'{"from": "a file"}')

    with running(ECHO) as server:
        assert main(["predict", server.url, "--text", "hello"]) == 0
        assert main(["predict", server.url, str(file)]) == 0

    assert capsys.readouterr().out == 'a: hello\na: {\n  "from": "a file"\n}\n'


def test_info_shows_the_signature(adder: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", adder.url]) == 0

    assert "input   x     FP32  [3]" in capsys.readouterr().out


def test_info_writes_json_for_programs(adder: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", adder.url, "--json"]) == 0

    document = orjson.loads(capsys.readouterr().out)
    assert document["name"] == "adder"
    [x] = document["inputs"]
    assert (x["name"], x["datatype"], x["row_shape"]) == ("x", "FP32", [3])


@pytest.mark.parametrize(
    ("status", "arguments", "message"),
    [
        pytest.param(2, ["predict", "URL", "--data", "[1"], "--data is not JSON", id="no JSON"),
        pytest.param(2, ["predict", "URL", "no-such-file"], "cannot read no-such-file", id="no file"),
        pytest.param(2, ["predict", "URL", "PICKLE"], "is not a numpy file", id="a pickle"),
        pytest.param(2, ["predict", "URL", "--data", '"x"'], "input x: takes FP32", id="text"),
        pytest.param(1, ["info", "URL", "--model", "dog"], "no route /v2/models/dog", id="no such model"),
        pytest.param(2, ["info", "localhost:port"], "is not the address of a server", id="no address"),
        pytest.param(2, ["info", "http://127.0.0.1:99999"], "port must be 1 to 65535", id="no port"),
        pytest.param(2, ["info", "http://127.0.0.1:0"], "port must be 1 to 65535", id="port 0"),
        pytest.param(1, ["info", "http://127.0.0.1:1"], "cannot reach", id="unreachable"),
        pytest.param(2, ["serve", "no-such-path"], "there is no file or directory", id="nothing to serve"),
        pytest.param(2, ["serve", "DIR", "--set", "a=b"], "there is no field a", id="no such field"),
        pytest.param(2, ["serve", "DIR", "--set", "model.uri=/models/mean"], "--set model.uri=DIR", id="no model here"),
        pytest.param(2, ["serve", "DIR", "--set", "runtime.threads=x"], "must be 1 to 1024", id="another type"),
        pytest.param(
            2, ["serve", "DIR", "--port", "8099", "--admin-port", "8099"], "not both be 8099", id="the same port twice"
        ),
        pytest.param(
            1,
            ["serve", "DIR", "--host", "203.0.113.1"],
            "cannot listen on port 8080 of 203.0.113.1: Cannot assign",
            id="no host",
        ),
    ],
)
def test_what_goes_wrong_is_one_line(
    adder: FakeServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    status: int,
    arguments: list[str],
    message: str,
) -> None:
    """The exit status separates wrong arguments from failures of the server or the machine."""
    pickle = tmp_path / "item.npy"
    np.save(pickle, np.array([{}], dtype=object))
    names = {"URL": adder.url, "PICKLE": str(pickle), "DIR": str(tmp_path)}

    assert main([names.get(each, each) for each in arguments]) == status

    error = capsys.readouterr().err
    assert error.startswith("shoal: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up being root, so that a port is refused")
def test_a_port_of_the_superuser_is_told_as_such() -> None:
    program = (
        "import os\n"
        "from shoal.ports import find_port\n"
        "os.setgroups([]), os.setgid(65534), os.setuid(65534)\n"
        "find_port('127.0.0.1', 81, option='--port')"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert "port 81 of 127.0.0.1 is reserved" in result.stderr
    assert "[Errno" not in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", ["serve", "info", "predict", "bench"])
def test_an_unknown_option_is_told_with_the_usage_of_its_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "x", "--bogus"]) == 2

    error = capsys.readouterr().err
    assert error.startswith(f"Usage: shoal {command} [OPTIONS]")
    assert "--bogus" in error.splitlines()[-1]


def test_a_misspelt_command_is_told_with_the_one_that_is_near(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serv"]) == 2

    assert "Did you mean 'serve'?" in capsys.readouterr().err


def test_the_bare_command_lists_all_commands_under_headings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2

    listed = capsys.readouterr().err
    headings = [listed.index(f"\n{heading}:\n") for heading in ("Serve", "Observe", "Offline", "Cluster")]
    assert headings == sorted(headings)
    assert all(re.search(rf"^  {command} ", listed, re.M) for command in COMMANDS.commands)


def test_a_command_that_is_not_installed_is_an_error_with_its_distribution(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shoal_local", None)
    monkeypatch.delitem(sys.modules, "shoal_local.command_line", raising=False)

    assert main(["local", "up"]) == 1
    assert "pip install ./local" in capsys.readouterr().err


def test_of_two_servers_started_together_one_has_the_usual_admin_port() -> None:
    """Neither listens on it yet when the other looks."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with claimed("127.0.0.1", port) as first:
        with claimed("127.0.0.1", port) as second:
            assert (first, second) == (True, False)
        with claimed("127.0.0.2", port) as another:
            assert another
    with claimed("127.0.0.1", port) as later:
        assert later


def test_a_listener_on_another_address_does_not_occupy_the_usual_admin_port() -> None:
    with socket.create_server(("127.53.8.2", 0)) as listener:
        port = listener.getsockname()[1]
        with claimed("127.53.8.2", port) as occupied, claimed("127.0.0.1", port) as free:
            assert (occupied, free) == (False, True)


def test_a_broken_rule_between_a_file_and_set_is_said_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "service.yaml"
    manifest.write_text(
        "apiVersion: serving.shoal.dev/v1alpha1\nkind: InferenceService\nmetadata: {name: a}\n"
        "spec:\n  model: {uri: /models/a}\n  batching: {policy: Fixed, maxDelayMilliseconds: 5}\n"
    )
    assert main(["serve", str(manifest), "--set", "batching.policy=Adaptive"]) == 2
    assert "maxDelayMilliseconds requires policy Fixed" in capsys.readouterr().err


def test_a_port_in_use_is_said_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])

        assert main(["serve", str(tmp_path), "--port", port]) == 1
        assert main(["serve", str(tmp_path), "--port", "0", "--admin-port", port]) == 1

    first, second = capsys.readouterr().err.splitlines()
    assert f"port {port} of 127.0.0.1 is in use" in first
    assert second.endswith("--admin-port")


@pytest.mark.parametrize("command", [[], ["serve"], ["predict"], ["info"], ["completion"]])
def test_help_teaches_by_examples(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0

    assert "examples:" in capsys.readouterr().out


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_port_must_be_one(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", ".", f"--port={port}"]) == 2

    assert "--port" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "1e9", "soon"])
def test_a_timeout_must_be_a_time(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "URL", "--timeout", seconds]) == 2

    assert "--timeout" in capsys.readouterr().err


def test_an_item_may_come_from_standard_input(
    adder: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import subprocess
    import sys

    with running(ECHO) as server:
        ended = subprocess.run(
            [sys.executable, "-m", "shoal", "predict", server.url, "-"],
            input=b'{"a": 1}',
            capture_output=True,
            check=True,
        )

    assert orjson.loads(ended.stdout.removeprefix(b"a: ")) == {"a": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "DIR", "--port", "abc"], "'--port': 'abc'"),
        (["serve", "DIR", "--port", "65536"], "'--port': 65536 is not in the range 0<=x<=65535"),
        (["serve", "DIR", "--port", "9" * 5000], "'--port': '9"),
        (["serve", "DIR", "--host", "a b"], "'--host': must be an address or a host name, not 'a b'"),
        (["serve", "DIR", "--host", ""], "'--host': must be an address or a host name, not ''"),
        (["info", "URL", "--timeout", "x"], "'--timeout': 'x'"),
        (["info", "URL", "--timeout", "0"], "'--timeout': 0.0 is not in the range 0<x<=86400"),
        (["bench", "URL", "--rows", "0"], "'--rows': 0 is not in the range 1<=x<=65536"),
        (["bench", "URL", "--seed", "x"], "'--seed': 'x'"),
        (["bench", "URL", "--rows", "1.5"], "'--rows': '1.5'"),
    ],
)
def test_an_option_that_cannot_be_meant_says_what_it_takes(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
