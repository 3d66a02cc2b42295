"""Programs from Debian's packages, downloaded and unpacked without being root."""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path


class PackageError(Exception):
    """A package cannot be fetched here."""


def unpack(folder: Path, packages: Sequence[str]) -> None:
    """Download packages and unpack them below ``folder``.

    Raises:
        PackageError: there is no apt, or it does not find them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as downloads:
        try:
            # The sandbox user of apt may not write to a folder of ours.
            options = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
            _call("apt-get", *options, "download", *packages, folder=downloads)
            for package in Path(downloads).glob("*.deb"):
                _call("dpkg", "-x", str(package), str(folder), folder=downloads)
        except (OSError, subprocess.SubprocessError) as error:
            raise PackageError(str(error)) from error


def _call(*command: str, folder: str) -> None:
    """Run a command in a folder; its complaint becomes part of the error."""
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    if result.returncode != 0:
        raise subprocess.SubprocessError(f"{command[0]} {command[-1]}: {result.stderr.strip()[-300:]}")
