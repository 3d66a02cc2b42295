"""Whether containers can have mounts on this machine, found out by making one."""

import subprocess
import sys
import tempfile

from shoal_local.kubelet.runs import SHIM_ENVIRONMENT

NO_MOUNTS = "--no-mounts"
"""The kubelet's option."""
_TRIAL = [sys.executable, "-S", "-m", "shoal_local.kubelet.namespaces"]


def mounts_refused() -> str:
    """Return why no mounts can be made here, or '' where they can.

    User namespaces are forbidden in most containers and by some distributions, and allowed but of no use in others;
    so a process of its own does all that a container with volumes needs.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-") as directory:
        done = subprocess.run(
            [*_TRIAL, directory], env=SHIM_ENVIRONMENT, cwd="/", capture_output=True, text=True, check=False
        )
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


def refusal_message(refusal: str) -> str:
    """Return the line that says how containers get their volumes when mounts are refused."""
    return f"cannot mount volumes on this machine ({refusal}): containers get the paths of their directories instead"
