"""Virtual environments for foreign packages whose pins clash with ours, built once and kept in ``.venvs``."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
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


def npm_program(package: str, program: str) -> Path:
    """Return a program of a package `NAME@VERSION` of npm's, installed when it is not there yet."""
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional"]
    folder = _built(
        package, lambda folder: _run(["npm", "install", "--silent", *options, "--prefix", str(folder), package])
    )
    return folder / "node_modules" / ".bin" / program


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
    # The pins are a whole closure, so nothing is resolved; what is imported is compiled then: both save minutes.
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--requirement", str(pins)]
    _run([sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "install", *options])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}"
