"""The images, built by `make images` and run as a pod runs them: as user 65532, with a read-only root.

`make test-images` runs them: building takes a registry and many minutes, which `make e2e` does without.

Indexes and the base are set as for `make images` (BASE, PIP_CONF, FLAGS, BUILDER). SHOAL_IMAGES_TAG
names a tag that is there already; SHOAL_IMAGES_RUN is another way to run one than the builder's ``run``.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path

import pytest

from shoal_schema.version import VERSION
from tests import plain
from tests.project.scripts import ROOT, load

TIMEOUT_S = 120
BUILD_TIMEOUT_S = 3600
USER_ID = 65532
# Everything that Shoal's pods demand of a container.
RESTRICTED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop=all", "--security-opt", "no-new-privileges")
PACKAGES = ("pip", "shoal", "shoal_local", "shoal_operator", "shoal_proxy", "shoal_runtime", "torch", "numpy", "kopf")
HELD = {
    "operator": {"shoal_operator", "kopf"},
    "proxy": {"shoal_proxy", "numpy"},
    "runtime": {"shoal_runtime", "torch", "numpy"},
    "runtime-light": {"shoal_runtime", "numpy"},
}
LOOK = f"""
import importlib.util, json, os, sys
try:
    open("/here", "w")
    written = True
except OSError:
    written = False
held = [each for each in {PACKAGES!r} if importlib.util.find_spec(each)]
listed = json.load(open("/usr/share/sbom/shoal.cdx.json"))
print(json.dumps([os.getuid(), written, held, listed["bomFormat"], [each["name"] for each in listed["components"]]]))
"""


@pytest.fixture(scope="module")
def runs() -> list[str]:
    """The beginning of a command that runs an image."""
    if not any(os.environ.get(name) for name in ("SHOAL_IMAGES_BUILD", "SHOAL_IMAGES_TAG")):
        pytest.skip("images take a registry and many minutes: make test-images")
    works = load("images").works
    runner = next((each for each in ("docker", "podman") if works(each)), None)
    if runner is None:
        pytest.skip("neither docker nor podman is here and works: apt-get install podman runc (and buildah)")
    return shlex.split(os.environ.get("SHOAL_IMAGES_RUN", f"{runner} run"))


@pytest.fixture(scope="module")
def tag(runs: list[str]) -> str:
    """Build all images; return their tag."""
    if built := os.environ.get("SHOAL_IMAGES_TAG"):
        return built
    command = ["make", "images", "TAG=e2e"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=BUILD_TIMEOUT_S)
    return "e2e"


class Container:
    """A container that runs, and what it says."""

    def __init__(self, runs: list[str], image: str, *arguments: str, options: tuple[str, ...] = ()) -> None:
        command = [*runs, "--rm", "--network", "host", *RESTRICTED, *options, image, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def __enter__(self) -> "Container":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=TIMEOUT_S)

    def until(self, pattern: str) -> re.Match[str]:
        """Return the first match in what it says."""
        assert self.process.stdout is not None
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"no {pattern} in {''.join(seen)}")


def run_image(runs: list[str], image: str, *arguments: str, options: tuple[str, ...] = ()) -> tuple[int, str]:
    """Run an image to its end; return its exit status and what it said."""
    container = Container(runs, image, *arguments, options=options)
    output, _ = container.process.communicate(timeout=TIMEOUT_S)
    return container.process.returncode, output


@pytest.mark.timeout(BUILD_TIMEOUT_S)
@pytest.mark.parametrize("name", sorted(HELD))
def test_image_runs_unprivileged_with_one_component_and_its_inventory(runs: list[str], tag: str, name: str) -> None:
    status, output = run_image(runs, f"shoal/{name}:{tag}", "-c", LOOK, options=("--entrypoint", "python"))
    assert status == 0, output
    uid, written, held, form, listed = json.loads(output)
    assert (uid, written, set(held), form) == (USER_ID, False, HELD[name], "CycloneDX")
    assert "shoal" in listed
    assert ("numpy" in listed) == (name != "operator")


@pytest.mark.parametrize("name", ["operator", "proxy", "runtime"])
def test_an_image_tells_its_version(runs: list[str], tag: str, name: str) -> None:
    assert run_image(runs, f"shoal/{name}:{tag}", "--version") == (0, f"shoal-{name} {VERSION}\n")


def test_the_operator_s_image_starts_and_asks_for_a_cluster(runs: list[str], tag: str) -> None:
    status, output = run_image(runs, f"shoal/operator:{tag}")
    assert (status, "no API server to talk to: run in a pod" in output.splitlines()[-1]) == (2, True), output


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A folder that both containers of a pod see, as the emptyDir of the socket."""
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o777)
    tmp_path.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("runtime", ["runtime", "runtime-light"])
def test_proxy_and_runtime_serve_as_a_pair_both_compiled(
    runs: list[str], tag: str, runtime: str, shared: Path, light_model: Path
) -> None:
    model = ROOT / "examples" / "adder" / "model" if runtime == "runtime" else light_model
    mounts = ("--volume", f"{shared}:/run/shoal", "--volume", f"{model}:/models/adder:ro")
    own = ("--env", "SHOAL_MODEL_NAME=adder", "--env", "SHOAL_MODEL_URI=file:///models/adder")
    free = ("--env", "SHOAL_PROXY_LISTEN=127.0.0.1:0", "--env", "SHOAL_PROXY_ADMIN_LISTEN=127.0.0.1:0")
    with ExitStack() as stack:
        served = stack.enter_context(Container(runs, f"shoal/{runtime}:{tag}", options=(*mounts, *own)))
        assert served.until(r"event=listening .* compiled=(\w+)")[1] == "yes"
        served.until("event=model_ready")
        asked = stack.enter_context(Container(runs, f"shoal/proxy:{tag}", options=(*mounts, *own, *free)))
        found = asked.until(r"event=listening address=(\S+) .* admin=(\S+) .* compiled=(\w+)")
        assert found[3] == "yes"
        assert plain.get(f"http://{found[2]}/readyz?wait_ms=10000", timeout=TIMEOUT_S).status_code == HTTPStatus.OK
        rows = {"instances": [[1.0] * 16]}
        answer = plain.post(f"http://{found[1]}/v1/models/adder:predict", json=rows, timeout=TIMEOUT_S)
        assert answer.json() == {"predictions": [[2.0] * 16]}


@pytest.fixture
def light_model(tmp_path: Path) -> Path:
    """The adder without torch."""
    folder = tmp_path / "light"
    folder.mkdir()
    spec = 'TensorSpec("{}", "FP32", [-1, 16])'
    lines = (
        "from shoal_runtime import TensorSpec",
        "class Adder:",
        '    tensors = "numpy"',
        f"    inputs = ({spec.format('x')},)",
        f"    outputs = ({spec.format('y')},)",
        "    def forward(self, batch):",
        '        return batch["x"] + 1',
    )
    (folder / "handler.py").write_text("\n".join(lines))
    return folder


def test_the_activator_runs_from_the_proxy_s_image_and_ends_on_sigterm(runs: list[str], tag: str) -> None:
    known = ("ADMIN_LISTEN=127.0.0.1:0", "OPERATOR=http://127.0.0.1:9", "DRAIN_DELAY_S=0")
    options = [each for one in known for each in ("--env", f"SHOAL_ACTIVATOR_{one}")]
    image = (f"shoal/proxy:{tag}", "-m", "shoal_proxy.activator")
    with Container(runs, *image, options=("--entrypoint", "python", *options)) as room:
        room.until("event=listening")
        room.process.terminate()
        room.process.communicate(timeout=TIMEOUT_S)
        assert room.process.returncode == 0
