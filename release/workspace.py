"""Directories and programs of a release, and how its steps run commands."""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]


class Skipped(Exception):
    """A step cannot run on this machine; the message states the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where a release is built.

    Args:
        out: directory of the artifacts, empty at the start.
        scratch: directory of everything else.
        version: version of this checkout.
        image_options: options of ``images.py build``.
    """

    out: Path
    scratch: Path
    version: str
    image_options: tuple[str, ...] = ()
    images: dict[str, int] = field(default_factory=dict)
    """Names of pushed images, and their unpacked bytes."""

    def directory(self, name: str) -> Path:
        """Return a directory of the scratch space, made if it does not exist."""
        path = self.scratch / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def artifacts(self, pattern: str = "*") -> list[Path]:
        """Return the files of the release that match a pattern, sorted."""
        return sorted(path for path in self.out.glob(pattern) if path.is_file())


def version() -> str:
    """Return the version of this checkout."""
    text = (ROOT / "schema" / "shoal_schema" / "version.py").read_text()
    return text.partition('VERSION = "')[2].partition('"')[0]


def program(name: str) -> str:
    """Return the path of a program that release/requirements.txt installs."""
    return str(Path(sys.executable).parent / name)


def run(command: Sequence[str], *, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> str:
    """Print a command, run it, and return its standard output.

    Raises:
        CalledProcessError: the command failed. Its last lines are printed.
    """
    say(f"$ {shlex.join(map(str, command))}")
    # Not a pipe: a daemon that a command starts would hold it open.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        done = subprocess.run(
            command, cwd=cwd, env={**os.environ, **(environment or {})}, stdout=output, stderr=errors, check=False
        )
        for each in (output, errors):
            each.seek(0)
        text = output.read()
        if done.returncode:
            say("\n".join((text + errors.read()).splitlines()[-30:]))
            raise subprocess.CalledProcessError(done.returncode, command)
    return text


def say(text: str) -> None:
    """Print text without buffering."""
    print(text, flush=True)
