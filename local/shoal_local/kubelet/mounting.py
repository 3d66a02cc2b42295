"""Tests whether this machine allows mounts for containers."""

import subprocess
import sys
import tempfile

from shoal_local.kubelet.runs import SHIM_ENVIRONMENT

MOUNTS_UNAVAILABLE = "--no-mounts"
"""Name of the kubelet's option."""
_TRIAL = [sys.executable, "-S", "-m", "shoal_local.kubelet.namespaces"]


def mount_error() -> str:
    """Return why this machine refuses mounts, or '' if it allows them.

    A separate process tries all steps: some systems forbid user namespaces, others allow them without mounts.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-") as directory:
        done = subprocess.run(
            [*_TRIAL, directory], env=SHIM_ENVIRONMENT, cwd="/", capture_output=True, text=True, check=False
        )
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


def mount_error_message(refusal: str) -> str:
    """Return the message that mounts are refused and paths replace them."""
    return f"cannot mount volumes on this machine ({refusal}): containers get the paths of their directories instead"
