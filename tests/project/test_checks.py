"""What judges a change says the same wherever it is asked: `make check`, pre-commit, continuous integration."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.project.built import make

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROGRAM = re.compile(r"(?:^|/)(ruff (?:format|check)|codespell|mypy|lint-imports|git ls-files)\b")


def programs(commands: str) -> set[str]:
    """Return which programs judge in the lines of a shell."""
    return {match[1] for match in map(PROGRAM.search, re.split(r"[\n ](?=\S*/bin/|git )|\n", commands)) if match}


def dry(target: str) -> str:
    """Return what make would run."""
    return make(ROOT, "--dry-run", target).stdout


def test_a_commit_is_held_to_what_make_check_judges() -> None:
    [repository] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = [hook["entry"] for hook in repository["hooks"]]
    judged = [dry(entry.removeprefix("make ")) if entry.startswith("make ") else entry for entry in entries]

    wanted = programs(dry("check"))

    assert wanted == {"ruff format", "ruff check", "codespell", "mypy", "lint-imports", "git ls-files"}
    assert wanted <= programs("\n".join(judged))


def test_continuous_integration_asks_for_targets_that_there_are() -> None:
    asked = re.findall(r"^make ([\w-]+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert {"test", "test-compiled", "e2e"} <= set(asked)
    workflows = "\n".join(path.read_text() for path in WORKFLOWS)
    asked += re.findall(r"\bmake ([a-z][\w-]+)", workflows)
    assert {"check", "test-all", "test-interop", "test-images", "release-check", "release-attest"} <= set(asked)
    for target in asked:
        subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, check=True)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_names_full_versions_and_has_no_more_rights_than_it_states(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    used = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
    assert [each for each in used if not re.fullmatch(r"[\w.-]+/[\w./-]+@v\d+\.\d+\.\d+", each)] == []
    assert workflow["permissions"] == {"contents": "read"}


def test_workflows_test_each_python_that_the_package_states() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    stated = re.findall(r"Python :: (3\.\d+)", "\n".join(project["project"]["classifiers"]))
    ci = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert ci["jobs"]["test"]["strategy"]["matrix"]["python"] == stated
    assert re.findall(r"cp3(\d+)", project["tool"]["cibuildwheel"]["build"]) == [each[2:] for each in stated]


def test_every_target_of_make_is_one_that_no_file_can_stand_for() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = set(re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)[0].split())
    documented = set(re.findall(r"^([a-z0-9-]+):[^=\n]*##", text, re.MULTILINE))
    assert documented <= phony


@pytest.mark.parametrize("name", ["CORE_TESTS", "COMPILED_TESTS"])
def test_every_listed_test_exists(name: str) -> None:
    printed = subprocess.run(
        ["make", "--no-print-directory", "--eval", f"listed: ; @echo $({name})", "listed"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert len(printed) > 10
    assert [path for path in printed if not (ROOT / path).exists()] == []
