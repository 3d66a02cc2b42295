"""The built wheels, installed where nothing of the repository can be imported, do the main job."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from shoal_schema.publishing.publisher import Publisher
from shoal_schema.version import VERSION
from tests.project.built import Wheels, environment_with

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60
LOCAL = Publisher.of(ROOT).local
LIGHT = ", for a model that needs no PyTorch)"
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def bare(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install shoal` brings."""
    return environment_with(tmp_path_factory.mktemp("bare"), [wheels.shoal], "shoal")


@pytest.fixture(scope="module")
def serving(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install "shoal[serve]"` brings."""
    return environment_with(tmp_path_factory.mktemp("serving"), [wheels.shoal], "shoal[serve]")


@pytest.fixture(scope="module")
def whole(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install shoal-local` brings."""
    return environment_with(tmp_path_factory.mktemp("whole"), [wheels.shoal, wheels.local], "shoal-local")


def surroundings(programs: Path) -> Mapping[str, str]:
    return {"PATH": str(programs), "HOME": str(programs.parent), "SHOAL_MODEL_URI": "mean"}


def run(programs: Path, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment in its folder, where nothing of the repository can be imported."""
    call, environ = [str(programs / command), *arguments], surroundings(programs)
    return subprocess.run(
        call, cwd=programs.parent, env=environ, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


def until(lines: Iterator[str], pattern: str) -> re.Match[str]:
    """Return the first match in the lines that come."""
    seen = []
    for line in lines:
        seen.append(line)
        if match := re.search(pattern, line):
            return match
    raise AssertionError(f"no {pattern} in {''.join(seen)}")


def test_a_model_is_served_a_request_answered_and_ctrl_c_ends_it(serving: Path) -> None:
    command = [str(serving / "shoal"), "serve", str(ROOT / "examples" / "adder"), "--port", "0", "--admin-port", "0"]
    with subprocess.Popen(
        command,
        cwd=serving.parent,
        env=surroundings(serving),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            url = until(server.stdout, r"listening on (http://127\.0\.0\.1:\d+), metrics")[1]
            row = str(list(range(16)))
            answered = run(serving, "shoal", "predict", url, "--data", row, "--json")
            assert (answered.returncode, answered.stderr) == (0, "")
            assert json.loads(answered.stdout) == [number + 1 for number in range(16)]
            server.send_signal(signal.SIGINT)
            assert server.wait(PATIENCE_S) == 130
        finally:
            server.kill()


def test_the_local_cluster_runs_the_operator_from_the_wheels(whole: Path) -> None:
    folder = str(whole.parent / "cluster")
    try:
        up = run(whole, "shoal", "local", "up", "--dir", folder)
        assert up.returncode == 0, up.stderr
        status = run(whole, "shoal", "local", "status", "--dir", folder, "--json")
        assert status.returncode == 0
        assert json.loads(status.stdout)["pods"]["ready"] >= 1, "the operator's; the activator's may be there, too"
    finally:
        down = run(whole, "shoal", "local", "down", "--dir", folder)
    assert down.returncode == 0, down.stderr


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["shoal"], "shoal"),
        (["shoal-operator"], "shoal-operator"),
        (["shoal", "local"], "shoal local"),
        (["python", "-m", "shoal_operator"], "shoal-operator"),
        (["python", "-m", "shoal_proxy"], "shoal-proxy"),
        (["python", "-m", "shoal_runtime"], "shoal-runtime"),
    ],
)
def test_every_process_tells_the_one_version(whole: Path, command: list[str], named: str) -> None:
    printed = run(whole, command[0], *command[1:], "--version")
    assert (printed.returncode, printed.stdout, printed.stderr) == (0, f"{named} {VERSION}\n", "")


def test_the_command_works_without_any_extra(bare: Path) -> None:
    shown = run(bare, "shoal", "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "serve" in shown.stdout
    assert run(bare, "shoal", "--version").stdout == f"shoal {VERSION}\n"


def test_a_simulation_needs_no_extra(bare: Path) -> None:
    options = ["--poisson", "100", "--requests", "50", "--latency", "1ms+0.1ms", "--json"]
    assert run(bare, "shoal", "simulate", *options).returncode == 0


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        (
            ["shoal", "serve", "mean", "--port", "0", "--admin-port", "0"],
            f'"shoal[serve]" (or "shoal[serve-light]"{LIGHT}',
        ),
        (["shoal", "local", "up"], LOCAL),
        (["shoal", "local", "--help"], LOCAL),
        (["shoal-operator"], '"shoal[operator]"'),
        (["python", "-m", "shoal_operator"], '"shoal[operator]"'),
        (["python", "-m", "shoal_runtime"], f'"shoal[runtime]" (or "shoal[runtime-light]"{LIGHT}'),
        (["python", "-m", "shoal_proxy"], '"shoal[proxy]"'),
    ],
)
def test_what_is_missing_is_named_in_place_of_a_traceback(bare: Path, command: list[str], remedy: str) -> None:
    model = bare.parent / "mean"
    model.mkdir(exist_ok=True)
    (model / "handler.py").write_text("class Mean:\n    def forward(self, batch):\n        return batch\n")
    ended = run(bare, command[0], *command[1:])
    assert ended.returncode not in (0, -9)
    assert ended.stderr.splitlines()[-1].endswith(f"pip install {remedy}")
    assert "Traceback" not in ended.stderr + ended.stdout


def test_completing_a_command_that_is_not_installed_says_nothing(bare: Path) -> None:
    asked = {"_SHOAL_COMPLETE": "bash_complete", "COMP_WORDS": "shoal local ", "COMP_CWORD": "2"}
    ended = subprocess.run(
        [str(bare / "shoal")],
        cwd=bare.parent,
        env={**surroundings(bare), **asked},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
