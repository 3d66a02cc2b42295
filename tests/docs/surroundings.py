"""Where pages are followed: a copy of the clone, on networks of its own where the machine lets it."""

import functools
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_APART = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
_PAGES_PORTS = (8080, 8079)


@functools.cache
def apart() -> tuple[str, ...] | None:
    """The command that starts another with networks and processes of its own; None where the machine forbids that."""
    for options in ((), ("--map-root-user",)):
        command = (*_APART, *options)
        try:
            subprocess.run([*command, "ip", "link", "set", "lo", "up"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return command
    return None


def hindrance() -> str | None:
    """Return why pages cannot be followed here."""
    if not (ROOT / ".git").exists():
        return "needs a clone: what a reader has is git's to say"
    if not apart() and "PYTEST_XDIST_WORKER" in os.environ:
        return "no network of its own here, and other tests may want the usual ports: run `pytest tests/docs` alone"
    for port in () if apart() else _PAGES_PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return f"no private network here, and port {port} is in use"
    return None


def copy_clone(folder: Path) -> None:
    """Copy what git knows, as it is now, and point at this environment."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    (folder / ".venv").symlink_to(sys.prefix)
