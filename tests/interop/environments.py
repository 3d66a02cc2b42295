"""Virtual environments for foreign packages whose pins clash with ours, built once and kept in ``.venvs``."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def python_with(name: str) -> Path:
    """Return the interpreter of an environment that holds ``requirements/{name}.txt``, built when it is not there yet.

    A change of the pins or of Python makes a new environment; ``make clean`` removes them all.
    """
    pins = HERE / "requirements" / f"{name}.txt"
    key = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()[:12]
    return _built(f"{name}-{key}", lambda venv: _build(venv, pins)) / "bin" / "python"


def npm_program(name: str, program: str) -> Path:
    """Return a program of the npm packages of ``requirements/{name}``, installed when they are not there yet."""
    wanted = HERE / "requirements" / name
    options = ["--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional"]

    def install(folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(wanted, folder)
        _run(["npm", "install", *options, "--prefix", str(folder)])

    key = hashlib.sha256((wanted / "package.json").read_bytes()).hexdigest()[:12]
    return _built(f"{name}-{key}", install) / "node_modules" / ".bin" / program


def _built(name: str, build: Callable[[Path], None]) -> Path:
    folder = ROOT / ".venvs" / f"interop-{name}"
    folder.parent.mkdir(exist_ok=True)
    # Pytest may run as several processes that want the same one; the kernel unlocks for one that is killed.
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".installed").exists():
            build(folder)
            (folder / ".installed").touch()
    return folder


def _build(venv: Path, pins: Path) -> None:
    shutil.rmtree(venv, ignore_errors=True)
    _run([sys.executable, "-m", "venv", "--without-pip", str(venv)])
    python = venv / "bin" / "python"
    wanted = [line for line in pins.read_text().splitlines() if "==" in line]
    if missing := [pin for pin in wanted if not _linked(pin, venv)]:
        # The pins are a whole closure, so nothing is resolved; what is imported is compiled then: both save minutes.
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile"]
        _run([sys.executable, "-m", "pip", "--python", str(python), "install", *options, *missing])


def _linked(pin: str, venv: Path) -> bool:
    """Share the files of a package that this environment has at that very version; say whether it has."""
    name, _, version = pin.partition("==")
    try:
        found = distribution(name.partition("[")[0])
    except PackageNotFoundError:
        return False
    places = _places(found, venv)
    if found.version != version or places is None:
        return False
    for source, target in places:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:  # the other environment is on another disk
            shutil.copy2(source, target)
    return True


def _places(found: Distribution, venv: Path) -> list[tuple[Path, Path]] | None:
    """Return its files and where they belong; None for one with programs or headers, which name their environment."""
    files = [(Path(str(file.locate())), file) for file in found.files or ()]
    if not files or any(".." in file.parts for _, file in files):
        return None
    [packages] = venv.glob("lib/python*/site-packages")
    return [(source, packages / file) for source, file in files if source.is_file()]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}"
