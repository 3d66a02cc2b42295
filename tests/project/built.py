"""Wheels of this checkout, and environments that hold only what they ask for."""

import os
import site
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

OWN = ("shoal", "shoal-local")
VENV = Path(sys.prefix)


@dataclass(frozen=True)
class Wheels:
    """One wheel of each distribution."""

    shoal: Path
    local: Path


def build(source: Path, folder: Path, target: str = "wheel", **environment: str) -> subprocess.CompletedProcess[str]:
    """Build as `pip` and `python -m build` do, beside what is installed here."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    environ = {**os.environ, **environment}
    return subprocess.run(command, cwd=source, env=environ, capture_output=True, text=True, check=False)


def make(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make in the clone with this environment's tools, as if they had just been installed."""
    installed = VENV / ".installed"
    command = ["make", f"VENV={VENV}", f"BIN={VENV / 'bin'}", f"--old-file={installed}", *arguments]
    return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)


def closure(*wanted: str) -> list[Distribution]:
    """Return what is asked for, and what that asks for, of what is installed here.

    Raises:
        PackageNotFoundError: something of it is not.
    """
    found: dict[tuple[str, str], Distribution] = {}
    waiting = [(each.name, extra) for each in map(Requirement, wanted) for extra in ("", *each.extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) not in found:
            found[name, extra] = distribution(name)
            waiting.extend(_asked(found[name, extra], extra))
    return list({each.name: each for each in found.values()}.values())


def _asked(asking: Distribution, extra: str) -> Iterator[tuple[str, str]]:
    for each in map(Requirement, asking.requires or ()):
        if each.marker is None or each.marker.evaluate({"extra": extra}):
            yield from ((each.name, part) for part in ("", *each.extras))


def environment_with(venv: Path, wheels: list[Path], *wanted: str) -> Path:
    """Make an environment of wheels and of what they ask for, as it is installed here; return its folder of programs.

    Nothing is downloaded and nothing is copied: links lead to the packages of this environment, and to no others, so
    that what a wheel needs and does not ask for is missing.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    python = venv / "bin" / "python"
    packages = next((venv / "lib").glob("python*/site-packages"))
    here = Path(next(folder for folder in site.getsitepackages() if Path(folder).is_dir()))
    for each in closure(*wanted):
        if each.name not in OWN:
            _link(each, here, packages)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--no-compile", *map(str, wheels)], check=True, timeout=120)
    return python.parent


def _link(each: Distribution, here: Path, packages: Path) -> None:
    for top in {Path(file).parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
        if not (packages / top).exists():
            (packages / top).symlink_to(here / top)
    for file in each.files or ():
        if "bin" in file.parts and ".." in file.parts:
            program = packages.parents[2] / "bin" / file.name
            program.unlink(missing_ok=True)
            program.symlink_to(Path(str(file.locate())).resolve())
