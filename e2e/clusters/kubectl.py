"""The real kubectl."""

import os
import subprocess
import sys
from pathlib import Path

from e2e.waiting import TIMEOUT_S

KUBECTL = Path(sys.executable).parent / "kubectl"


def kubectl(
    kubeconfig: Path, *args: str, text: str | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run kubectl as a user would."""
    done = subprocess.run(
        [str(KUBECTL), "--cache-dir", f"{kubeconfig}.cache", *args],
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        input=text,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S + 30,
        check=False,
    )
    assert not check or done.returncode == 0, f"kubectl {' '.join(args)}: {done.stderr}{done.stdout}"
    return done
