"""What is in an image, and how it is built; e2e/test_images.py builds and runs them where a builder is."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatch
from http import HTTPStatus
from pathlib import Path
from types import ModuleType

import pytest

from shoal_runtime.packages import LIGHT, PACKAGE_LIST
from shoal_schema.version import VERSION
from tests import plain
from tests.project.built import build, closure, environment_with
from tests.project.scripts import ROOT, load

DOCKERFILE = (ROOT / "Dockerfile").read_text()
NAMES = ("operator", "proxy", "runtime", "runtime-light")
OTHERS = ("shoal", "shoal_local", "shoal_operator", "shoal_proxy", "shoal_runtime")
PATIENCE_S = 60


@pytest.fixture(scope="module")
def images() -> ModuleType:
    return load("images")


def wanted(images: ModuleType, name: str) -> list[str]:
    """Return the requirements of an image."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found: list[str] = images.requirements(images.IMAGES[name].extras.split(","), declared)
    return found


def test_the_runtime_suggests_the_image_that_has_an_extra(images: ModuleType) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in LIGHT:
        needed = set(images.requirements([extra], declared))
        assert needed <= set(wanted(images, "runtime-light")), extra
        assert not needed <= set(wanted(images, "runtime")), extra
    # The file by which the runtime recognizes an image of Shoal.
    assert f"COPY --from=sbom /sbom {PACKAGE_LIST.parent}" in DOCKERFILE
    assert f"/sbom/{PACKAGE_LIST.name}" in DOCKERFILE


def instructions() -> Iterator[tuple[str, str]]:
    """Return each instruction of the Dockerfile with what stands behind it."""
    text = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", DOCKERFILE))
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        yield name, rest


def stages() -> dict[str, list[tuple[str, str]]]:
    """Return the instructions of each stage of the Dockerfile, the first with what it stands on."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, rest in instructions():
        if name == "FROM":
            current = found.setdefault(rest.split(" AS ")[1], [])
        elif not found:
            continue
        current.append((name, rest))
    return found


def test_the_one_base_is_an_argument_pinned_by_version_and_digest() -> None:
    assert re.search(r"(?m)^ARG BASE=python:3\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}$", DOCKERFILE)
    stood_on = [found[0][1].split(" AS ")[0] for found in stages().values()]
    assert set(stood_on) <= {"${BASE}", *stages()}


@pytest.mark.parametrize("component", ["operator", "proxy", "runtime"])
def test_an_image_runs_as_nobody_and_ends_on_sigterm(component: str) -> None:
    [(_, stands_on), (_, entry)] = stages()[component]
    assert stands_on.startswith("image AS")
    assert json.loads(entry) == ["python", "-m", f"shoal_{component}"]
    shared = stages()["image"]
    assert [rest for name, rest in shared if name in ("USER", "STOPSIGNAL")] == ["SIGTERM", "65532:65532"]
    assert shared[-1][0] == "USER", "no file of an image belongs to its user"


def test_an_image_holds_the_bytecode_that_its_base_lacks_and_no_container_could_write() -> None:
    [made] = [rest for name, rest in stages()["base"] if "compileall" in rest]
    assert 'get_path("stdlib")' in made
    assert "PYTHONDONTWRITEBYTECODE" not in DOCKERFILE


def test_an_edited_source_installs_no_package_of_others_again() -> None:
    copied = [rest for name, rest in stages()["packages"] if name == "COPY"]
    assert copied == ["--from=requirements /requirements.txt /build/"], "a list, which stays while sources change"
    assert [rest for name, rest in stages()["tools"] if name == "COPY"] == ["constraints.txt /build/"]
    order = [rest.split()[0] for name, rest in stages()["image"] if name == "COPY"]
    assert order == ["--from=packages", "--from=own", "--from=sbom"], "nodes keep the large layer, too"
    assert not re.search(r"(?m)^COPY (--\S+ )*\. ", DOCKERFILE)


def test_what_is_installed_is_pinned_and_comes_from_nowhere_that_stands_here() -> None:
    tools = [f"{name} {rest}" for name, rest in stages()["tools"]]
    [pinned] = [index for index, line in enumerate(tools) if "PIP_CONSTRAINT=/build/constraints.txt" in line]
    [installed] = [index for index, line in enumerate(tools) if "pip install" in line]
    assert pinned < installed
    for stage in ("packages", "own"):
        assert stages()[stage][0] == ("FROM", f"tools AS {stage}")
    assert "://" not in DOCKERFILE
    assert {"cyclonedx-bom", "uv"} <= {
        line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()
    }


def test_a_build_is_sent_what_the_dockerfile_copies_and_no_more(tracked: Sequence[str]) -> None:
    first, *lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert first == "*"
    allowed = [line.removeprefix("!") for line in lines if line.startswith("!")]
    copied = {
        each.replace("${COMPONENT}", component)
        for name, rest in instructions()
        if name == "COPY" and "--from" not in rest
        for each in rest.split()[:-1]
        for component in ("operator", "proxy", "runtime")
    }
    assert copied == set(allowed)
    sent = {
        name for name in tracked if any(fnmatch(name, pattern) or name.startswith(f"{pattern}/") for pattern in allowed)
    }
    assert {name.partition("/")[0] for name in sent}.isdisjoint(
        {"charts", "client", "e2e", "examples", "local", "tests"}
    )


@pytest.mark.parametrize("name", NAMES)
def test_an_image_has_what_its_process_needs_and_nothing_for_others(images: ModuleType, name: str) -> None:
    brought = {each.name.lower() for each in closure(*wanted(images, name))}
    assert brought.isdisjoint({"pip", "pytest", "shoal", "shoal-local", "argcomplete"})
    assert ("torch" in brought) == (name == "runtime")
    assert ("numpy" in brought) == (name != "operator")
    assert ("kopf" in brought) == (name == "operator")
    assert ("starlette" in brought) == (name == "proxy")


@pytest.mark.parametrize("name", NAMES)
def test_an_extra_says_of_a_package_what_the_command_says_of_it(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = {re.split(r"[^\w.-]", line)[0]: line for line in project["dependencies"]}
    for line in project["optional-dependencies"].get(name, ()):
        assert own.get(re.split(r"[^\w.-]", line)[0], line) == line


@pytest.mark.parametrize(
    ("extras", "declared", "asked"),
    [
        (["a"], {"a": ["x>=1", "y"]}, ["x>=1", "y"]),
        (["a"], {"a": ["x>=1", "shoal[b,c]"], "b": ["x>=1"], "c": ["shoal[d]"], "d": ["z"]}, ["x>=1", "z"]),
    ],
)
def test_extras_bring_what_the_extras_in_them_bring(
    images: ModuleType, extras: list[str], declared: Mapping[str, list[str]], asked: list[str]
) -> None:
    assert images.requirements(extras, declared) == asked


# A builder that records its arguments and reports the given sizes.
BUILDER = """#!{python}
import os, sys
if sys.argv[1] == "info":
    sys.exit({broken})
open({log!r}, "a").write("{name} " + " ".join(sys.argv[1:]) + "\\n")
if sys.argv[1] == "image":
    print({sizes}[sys.argv[-1].rpartition("/")[2].partition(":")[0]])
if "--target" in sys.argv and {failing!r} in sys.argv:
    sys.exit(7)
"""


class Machine:
    """A folder of programs that stand in for builders, and their log."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"

    def has(self, name: str, sizes: Mapping[str, int], *, broken: bool = False, failing: str = "-") -> None:
        """Put a builder there."""
        parameters = {"python": sys.executable, "log": str(self.log), "name": name, "sizes": dict(sizes)}
        path = self.folder / name
        path.write_text(BUILDER.format(broken=int(broken), failing=failing, **parameters))
        path.chmod(0o755)

    def build(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Build with what is there."""
        command = [sys.executable, str(ROOT / "images.py"), "build", *arguments]
        environ = {"PATH": str(self.folder)}
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    def asked(self, *words: str) -> list[list[str]]:
        """Return the commands that builders got, of those that hold all words."""
        lines = [shlex.split(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if set(words) <= set(line)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "git").symlink_to("/bin/false")
    return Machine(tmp_path)


MEGABYTE = 1_000_000


def test_sizes_are_printed_with_and_without_the_base(machine: Machine) -> None:
    machine.has("docker", {"base": 130 * MEGABYTE, "operator": 230 * MEGABYTE})
    built = machine.build("operator", "--tag", "1", "--registry", "registry.example.com")
    assert (built.returncode, built.stderr) == (0, "")
    assert built.stdout.splitlines()[-1].split() == [
        "registry.example.com/shoal/operator:1",
        "230",
        "130",
        "100",
        "120",
    ]


def test_an_image_over_its_mark_fails_the_build_after_all_are_built(machine: Machine) -> None:
    machine.has("docker", {"base": 130 * MEGABYTE, "operator": 251 * MEGABYTE, "proxy": 239 * MEGABYTE})
    built = machine.build("operator", "proxy")
    assert (built.returncode, built.stderr) == (1, "images: over the mark: operator\n")
    assert f"shoal/proxy:{VERSION}" in built.stdout.splitlines()[-1]


def test_a_docker_without_its_daemon_is_passed_over(machine: Machine) -> None:
    machine.has("docker", {}, broken=True)
    machine.has("podman", {"base": 0, "proxy": MEGABYTE})
    assert machine.build("proxy").returncode == 0
    assert {line[0] for line in machine.asked()} == {"podman"}


def test_without_any_builder_a_line_says_which_would_do(machine: Machine) -> None:
    built = machine.build("proxy")
    assert (built.returncode, built.stderr) == (1, "images: none of docker, podman, buildah works\n")


def test_a_builders_failure_is_reported_after_its_own_output(machine: Machine) -> None:
    machine.has("docker", {"base": 0}, failing="base")
    built = machine.build("proxy")
    assert (built.returncode, built.stderr) == (1, "images: docker failed with exit status 7\n")


def test_base_cuda_extras_pip_s_configuration_and_flags_reach_the_builder(machine: Machine) -> None:
    machine.has("podman", {"base": 0, "runtime": 0})
    options = ["--base", "own:1", "--cuda", "cu128", "--extras", "runtime,torchserve", "--pip-conf", "pip.conf"]
    assert machine.build("runtime", *options, "--flags=--network host").returncode == 0
    [asked] = machine.asked("--target", "runtime")
    for each in ("BASE=own:1", "CUDA=cu128", "EXTRAS=runtime,torchserve", "id=pip,src=pip.conf", "--network", "host"):
        assert each in asked


@pytest.fixture(scope="module")
def alone(clone: Path, images: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """What each image installs, in an environment of its own: the folders of programs."""
    found = {}
    for name in NAMES:
        component = images.IMAGES[name].component
        folder = tmp_path_factory.mktemp(name)
        for each in ("compile.py", "LICENSE", "pyproject.toml", "README.md"):
            shutil.copy(clone / each, folder)
        for each in ("schema/shoal_schema", f"{component}/shoal_{component}"):
            shutil.copytree(clone / each, folder / each)
        assert build(folder, folder / "dist").returncode == 0
        [wheel] = (folder / "dist").glob("*.whl")
        found[name] = environment_with(folder / "environment", [wheel], *wanted(images, name))
    return found


def start(programs: Path, *command: str, **environment: str) -> subprocess.Popen[str]:
    """Start Python with what an image has, in a folder where nothing of the repository can be imported."""
    environ = {"PATH": str(programs), "HOME": str(programs), **environment}
    return subprocess.Popen(
        [str(programs / "python"), *command],
        cwd=programs,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def until(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Return the first match in what a process says."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if match := re.search(pattern, line):
            return match
    raise AssertionError(f"no {pattern} in {''.join(seen)}")


@pytest.mark.integration
@pytest.mark.parametrize("name", NAMES)
def test_no_image_carries_another_component_s_code(alone: Mapping[str, Path], name: str, images: ModuleType) -> None:
    code = f"import importlib.util as util; print(*[each for each in {OTHERS!r} if util.find_spec(each)])"
    with start(alone[name], "-c", code) as process:
        assert process.communicate(timeout=PATIENCE_S)[0].split() == [f"shoal_{images.IMAGES[name].component}"]


@pytest.mark.integration
def test_the_operator_alone_starts_and_asks_for_a_cluster(alone: Mapping[str, Path]) -> None:
    with start(alone["operator"], "-m", "shoal_operator") as process:
        said, _ = process.communicate(timeout=PATIENCE_S)
    assert said.splitlines()[-1].startswith("shoal-operator: no API server")
    assert process.returncode == 2


PLAIN = """
from shoal_runtime import TensorSpec

class Adder:
    tensors = "numpy"
    inputs = (TensorSpec("x", "FP32", [-1, 16]),)
    outputs = (TensorSpec("y", "FP32", [-1, 16]),)

    def forward(self, batch):
        return batch["x"] + 1
"""


@pytest.mark.integration
@pytest.mark.parametrize("runtime", ["runtime", "runtime-light"])
def test_proxy_and_runtime_each_alone_serve_as_a_pair(alone: Mapping[str, Path], runtime: str, tmp_path: Path) -> None:
    model = tmp_path / "adder"
    shutil.copytree(ROOT / "examples" / "adder" / "model", model)
    if runtime == "runtime-light":
        (model / "handler.py").write_text(PLAIN)
    socket = f"unix:{tmp_path / 'socket'}"
    known = {"SHOAL_MODEL_NAME": "adder", "SHOAL_MODEL_URI": str(model), "SHOAL_RUNTIME_LISTEN": socket}
    ports = {"SHOAL_PROXY_LISTEN": "127.0.0.1:0", "SHOAL_PROXY_ADMIN_LISTEN": "127.0.0.1:0"}
    with ExitStack() as stack:
        served = stack.enter_context(start(alone[runtime], "-m", "shoal_runtime", **known))
        stack.callback(served.kill)
        until(served, "event=model_ready")
        asked = start(
            alone["proxy"], "-m", "shoal_proxy", SHOAL_PROXY_RUNTIME=socket, SHOAL_MODEL_NAME="adder", **ports
        )
        stack.enter_context(asked)
        stack.callback(asked.kill)
        _, address, admin = until(asked, r"event=listening address=(\S+) .* admin=(\S+) ").group(0, 1, 2)
        assert plain.get(f"http://{admin}/readyz?wait_ms=10000", timeout=PATIENCE_S).status_code == HTTPStatus.OK
        rows = {"instances": [[1.0] * 16]}
        answer = plain.post(f"http://{address}/v1/models/adder:predict", json=rows, timeout=PATIENCE_S)
        assert answer.json() == {"predictions": [[2.0] * 16]}


@pytest.mark.integration
def test_the_activator_starts_from_the_proxy_s_image(alone: Mapping[str, Path]) -> None:
    known = {"ADMIN_LISTEN": "127.0.0.1:0", "OPERATOR": "http://127.0.0.1:9", "DRAIN_DELAY_S": "0"}
    environment = {f"SHOAL_ACTIVATOR_{name}": value for name, value in known.items()}
    with start(alone["proxy"], "-m", "shoal_proxy.activator", **environment) as process:
        until(process, "listening")
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
