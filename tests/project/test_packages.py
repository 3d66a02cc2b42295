"""What wheels and sdists hold, and what they ask for."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from shoal_schema.version import VERSION
from tests.project.built import Wheels, build, closure, make

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def metadata(wheels: Wheels) -> Message:
    return metadata_of(wheels.shoal)


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def named(archive: Path) -> set[str]:
    """Return the files of a wheel or an sdist; of an sdist without its folder."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name for name in wheel.namelist() if ".dist-info/" not in name}
    with tarfile.open(archive) as sdist:
        return {name.partition("/")[2] for name in sdist.getnames()}


def contents(wheel: Path) -> dict[str, bytes]:
    """Return what a wheel holds, metadata too; the list of it is in no certain order."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def packed(tracked: Iterable[str], places: Mapping[str, str]) -> set[str]:
    """Return what a wheel is to hold of the files that git knows: folder of the repository -> place in the wheel."""
    return {place + name.removeprefix(own) for own, place in places.items() for name in tracked if name.startswith(own)}


@pytest.mark.integration
def test_a_wheel_holds_what_git_knows_of_its_packages_and_nothing_else(wheels: Wheels, tracked: list[str]) -> None:
    packages = (
        "client/shoal",
        "operator/shoal_operator",
        "proxy/shoal_proxy",
        "runtime/shoal_runtime",
        "schema/shoal_schema",
    )
    assert named(wheels.shoal) == packed(tracked, {f"{each}/": f"{Path(each).name}/" for each in packages})

    local = {"local/shoal_local/": "shoal_local/", "charts/shoal/": "shoal_local/chart/"}
    assert named(wheels.local) == packed(tracked, local)


@pytest.mark.integration
def test_every_package_says_that_it_is_typed_and_the_chart_brings_the_definition(wheels: Wheels) -> None:
    names = named(wheels.shoal) | named(wheels.local)
    packages = {name.partition("/")[0] for name in names}
    assert {f"{package}/py.typed" for package in packages} <= names
    assert "shoal_local/chart/files/serving.shoal.dev_inferenceservices.yaml" in names


@pytest.mark.integration
@pytest.mark.parametrize("folder", [".", "local"])
def test_an_sdist_builds_the_very_wheel_that_a_clone_builds(
    clone: Path, wheels: Wheels, folder: str, tmp_path: Path
) -> None:
    assert build(clone / folder, tmp_path, target="sdist").returncode == 0
    [sdist] = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")

    built = build(sdist.with_name(sdist.name.removesuffix(".tar.gz")), tmp_path)

    assert built.returncode == 0, built.stderr
    [wheel] = tmp_path.glob("*.whl")
    assert contents(wheel) == contents(wheels.shoal if folder == "." else wheels.local)


@pytest.mark.integration
def test_make_dist_builds_what_is_published(clone: Path) -> None:
    made = make(clone, "dist")
    assert made.returncode == 0, made.stderr
    names = {f"{each}-{VERSION}{end}" for each in ("shoal", "shoal_local") for end in (".tar.gz", "-py3-none-any.whl")}
    assert {path.name for path in (clone / "dist").iterdir()} == names
    shutil.rmtree(clone / "dist")


@pytest.mark.integration
def test_the_local_clusters_sdist_holds_its_package_its_chart_and_no_more(clone: Path, tmp_path: Path) -> None:
    assert build(clone / "local", tmp_path, target="sdist").returncode == 0
    tops = {name.partition("/")[0] for name in named(next(tmp_path.glob("*.tar.gz")))}
    # hatchling always excludes what git ignores.
    assert tops - {".gitignore"} == {"LICENSE", "PKG-INFO", "README.md", "packing.py", "pyproject.toml", "shoal_local"}


def test_what_serves_light_formats_brings_no_torch() -> None:
    extras = ("serve-light", "trees", "onnx")
    brought = {requirement.name for extra in extras for requirement in closure(f"shoal[{extra}]")}

    assert "skops" in brought
    assert "torch" not in brought


def test_the_local_cluster_brings_no_torch() -> None:
    brought = {requirement.name for requirement in closure("shoal-local")}

    assert {"kopf", "uvloop"} <= brought
    assert "torch" not in brought


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
    assert "docs/how-to/models.md" in description, "a page is still named where it was linked"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("extra", "brings"),
    [
        ("serve", {"torch", "uvicorn", "pyyaml", "starlette"}),
        ("operator", {"kopf", "aiohttp", "kubernetes"}),
    ],
)
def test_an_extra_is_whole(metadata: Message, extra: str, brings: set[str]) -> None:
    required = metadata.get_all("Requires-Dist") or []
    named = {line.split(">")[0].split("=")[0].split("<")[0].split(";")[0].strip() for line in required if extra in line}
    assert brings <= named


@pytest.mark.integration
@pytest.mark.parametrize(
    ("value", "why"), [("1", "there is no C compiler (no-such-cc)"), ("yes", "must be 0 or 1, not yes")]
)
def test_who_insists_on_compiling_gets_no_pure_wheel(clone: Path, tmp_path: Path, value: str, why: str) -> None:
    built = build(clone, tmp_path, CC="no-such-cc", SHOAL_COMPILE=value)
    assert built.returncode != 0
    assert why in (built.stdout + built.stderr).splitlines()[-1]
    assert not list(tmp_path.glob("*.whl"))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("environment", "compiles"),
    [
        ({}, False),
        ({"SHOAL_COMPILE": "0"}, False),
        ({"SHOAL_COMPILE": "1"}, True),
    ],
)
def test_a_build_asks_for_mypyc_only_where_it_compiles(
    clone: Path, environment: dict[str, str], compiles: bool
) -> None:
    code = "from hatchling.build import get_requires_for_build_wheel as asks; print(asks())"
    environ = {"PATH": os.environ["PATH"], **environment}
    asked = subprocess.run(
        [sys.executable, "-c", code], cwd=clone, env=environ, capture_output=True, text=True, check=True
    )
    assert ("mypy==" in asked.stdout) is compiles
