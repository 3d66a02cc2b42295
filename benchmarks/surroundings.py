"""What a result depends on beside the code: machine, date, versions."""

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGES = ("httptools", "numpy", "orjson", "torch", "uvicorn", "uvloop")


def surroundings() -> dict[str, Any]:
    """Return machine, date and versions, ready for JSON."""
    return {
        "machine": machine(),
        "load_average": os.getloadavg()[0],
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {
            "python": platform.python_version(),
            "kernel": platform.release(),
            **{name: package_version(name) for name in PACKAGES},
        },
        "commit": commit(),
        "proxy": "compiled" if compiled("shoal_proxy.http.protocol") else "interpreted",
    }


def compiled(module: str) -> bool:
    """Return whether a module is a C extension."""
    found = find_spec(module)
    return found is not None and not str(found.origin).endswith(".py")


def machine() -> str:
    """Name the processor and how many of its cores this process may use."""
    cores = len(os.sched_getaffinity(0))
    return f"{processor_name()}, {cores} core{'s' if cores != 1 else ''}"


def processor_name() -> str:
    """Return the processor's name from the kernel."""
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return re.sub(r"\((R|TM)\)", "", names[0]) if names else platform.machine()


def package_version(name: str) -> str | None:
    """Return the version of an installed package, None when it is not there."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """Return the commit of the working tree, None outside a repository."""
    result = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout.strip() or None
