"""``shoal rollout``: the status as text, and the commands that reach kubectl."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.rollouts import annotation_change, status_text
from shoal.serving.errors import LocalError
from shoal_schema.resource.rollout import RolloutCommand

COMPARING: dict[str, Any] = {
    "phase": "Comparing",
    "stable": "aaaaaaaaaa",
    "candidate": "bbbbbbbbbb",
    "step": 2,
    "steps": 4,
    "weight": 5,
    "verdict": "the candidate agrees on 1,998 of 2,000 rows",
    "figures": {"rows": 2000, "disagreement": "0.001", "output": "label", "latencyRatio": "1.02", "errors": "0"},
}
KUBECTL = """#!{python}
import json, pathlib, sys
with pathlib.Path({log!r}).open("a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
if "missing" in sys.argv:
    sys.exit('Error from server (NotFound): inferenceservices.serving.shoal.dev "missing" not found')
if "get" in sys.argv:
    print(pathlib.Path({service!r}).read_text())
"""


def service(rollout: dict[str, Any] | None, **condition: str) -> dict[str, Any]:
    conditions = [{"type": "CandidateJudged", **condition}] if condition else []
    status = {"rollout": rollout, "conditions": conditions} if rollout else {}
    return {"metadata": {"name": "cat"}, "spec": {"rollout": {"strategy": "Canary"}}, "status": status}


def test_the_status_compares_memory_and_start_times_where_they_are_known() -> None:
    known = {"memoryBytes": 330 << 20, "stableMemoryBytes": 300 << 20, "startSeconds": 12, "stableStartSeconds": 9}
    text = status_text(service({**COMPARING, "figures": known}))

    assert "330 / 300 MiB" in text
    assert "12 / 9 s" in text
    assert "MiB" not in status_text(service(COMPARING))


def test_the_status_has_step_share_figures_and_verdict() -> None:
    text = status_text(service(COMPARING))

    for part in ("bbbbbbbbbb", "2 of 4, 5 % of requests", "0.001 (label)", "1.02", "1,998 of 2,000"):
        assert part in text


def test_an_obstacle_is_shown_instead_of_the_last_verdict() -> None:
    text = status_text(service(COMPARING, status="False", message="no node has a free nvidia.com/gpu"))

    assert "no node has a free nvidia.com/gpu" in text
    assert "1,998" not in text


def test_a_service_without_rollout_names_its_strategy() -> None:
    assert "Canary" in status_text(service(None))


@pytest.mark.parametrize("action", [*RolloutCommand, "resume"])
@pytest.mark.parametrize("phase", ["Stable", "Waiting", "Comparing", "Paused", "Promoting", "Failed"])
def test_a_command_names_the_candidate_or_is_rejected(action: str, phase: str) -> None:
    state = {**COMPARING, "phase": phase}
    allowed = {
        "pause": {"Waiting", "Comparing"},
        "abort": {"Waiting", "Comparing", "Paused", "Failed"},
        "promote": {"Waiting", "Comparing", "Paused", "Failed"},
        "resume": {"Paused"},
    }
    if phase not in allowed[action]:
        with pytest.raises(LocalError, match=phase):
            annotation_change(action, "cat", state)
        return
    expected = "-" if action == "resume" else f"={action} bbbbbbbbbb"
    assert annotation_change(action, "cat", state) == f"serving.shoal.dev/rollout{expected}"


@pytest.mark.parametrize("action", [RolloutCommand.ABORT, RolloutCommand.PAUSE])
def test_a_promotion_is_ended_by_the_former_spec_alone(action: str) -> None:
    with pytest.raises(LocalError, match="former spec"):
        annotation_change(action, "cat", {**COMPARING, "phase": "Promoting"})


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a kubectl on the path that logs its arguments and prints one service; return the log."""
    log, document, program = tmp_path / "log", tmp_path / "service.json", tmp_path / "kubectl"
    document.write_text(json.dumps(service(COMPARING)))
    program.write_text(KUBECTL.format(python=sys.executable, log=str(log), service=str(document)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return log


def shoal(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "shoal", *words], capture_output=True, text=True, check=False)


def test_commands_reach_kubectl_with_namespace_and_context(kubectl: Path) -> None:
    done = shoal("rollout", "abort", "cat", "-n", "shop", "--context", "prod")

    assert done.returncode == 0, done.stderr
    scope = ["--context", "prod", "--namespace", "shop"]
    asked = [json.loads(line) for line in kubectl.read_text().splitlines()]
    assert asked[0][: len(scope)] == scope
    assert asked[1] == [
        *(*scope, "annotate", "inferenceservices.serving.shoal.dev", "cat", "--overwrite"),
        "serving.shoal.dev/rollout=abort bbbbbbbbbb",
    ]


def test_the_status_is_available_as_json(kubectl: Path) -> None:
    done = shoal("rollout", "status", "cat", "--json")

    assert json.loads(done.stdout) == COMPARING


def test_kubectl_s_error_is_the_error(kubectl: Path) -> None:
    done = shoal("rollout", "status", "missing")

    assert done.returncode == 1
    assert "NotFound" in done.stderr


def test_without_kubectl_it_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert "kubectl, which is not installed" in shoal("rollout", "status", "cat").stderr


def test_json_needs_the_action_status() -> None:
    assert shoal("rollout", "pause", "cat", "--json").returncode == 2
