"""A virtual environment for each server, built once from its pins and kept in ``.venvs/peers``."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TIMEOUT_S = 900.0


class InstallError(Exception):
    """A server cannot be installed here; the message says why."""


def requirements(peer: str) -> Path:
    """Return the file with a server's pins."""
    return HERE / "requirements" / f"{peer}.txt"


def python_with(peer: str) -> Path:
    """Return the interpreter of an environment that holds a server, built when it is not there yet.

    A change of the pins or of Python builds it anew; ``make clean`` removes it.

    Raises:
        InstallError: pip failed.
    """
    pins = requirements(peer).read_bytes()
    key = hashlib.sha256(pins + sys.version.encode()).hexdigest()
    venv = ROOT / ".venvs/peers" / peer
    python, installed = venv / "bin/python", venv / ".installed"
    if not installed.exists() or installed.read_text() != key:
        print(f"installing {peer} into {venv.relative_to(ROOT)}", flush=True)
        build(venv, requirements(peer))
        installed.write_text(key)
    return python


def build(venv: Path, pins: Path) -> None:
    """Make an environment; the pins are a whole closure, so nothing is resolved."""
    shutil.rmtree(venv, ignore_errors=True)
    call(sys.executable, "-m", "venv", "--without-pip", str(venv))
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--requirement", str(pins)]
    call(sys.executable, "-m", "pip", "--python", str(venv / "bin/python"), "install", *options)


def call(*command: str) -> None:
    """Run a command; its complaint becomes the error."""
    # Installing is the one step that may yield to whatever else runs here.
    try:
        result = subprocess.run(
            ["nice", "-n", "10", *command], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise InstallError(f"{command[-1]}: not installed after {TIMEOUT_S:g} s") from error
    if result.returncode != 0:
        raise InstallError(result.stderr.strip()[-500:] or f"{command[0]} ended with status {result.returncode}")


def version_of(peer: str) -> str:
    """Return the version that a server is pinned to: its first requirement."""
    lines = requirements(peer).read_text().splitlines()
    first = next(line for line in lines if line and not line.startswith("#"))
    return first.partition("==")[2]
