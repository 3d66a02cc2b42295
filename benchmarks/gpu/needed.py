"""Packages that the benchmark needs, and what this machine does not have of them."""

import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
ALSO = ("numpy", "torch")
"""Of the machine, because their builds depend on the GPU."""
OWN = ("shoal", "shoal_proxy", "shoal_runtime", "shoal_schema")


def required(text: str) -> list[str]:
    """Return the names of packages in a requirements file."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [re.split(r"[\s<>=!~\[;]", line, maxsplit=1)[0] for line in lines if line]


def missing(names: Iterable[str]) -> list[str]:
    """Return those packages that are not installed."""
    found = []
    for name in names:
        try:
            version(name)
        except PackageNotFoundError:
            found.append(name)
    return found


def what_is_missing() -> str | None:
    """Return one sentence that names missing packages and how to install them; None if nothing is missing."""
    if absent := missing([*ALSO, *required(REQUIREMENTS.read_text(encoding="utf-8"))]):
        return (
            f"missing packages: {', '.join(absent)}; install them from benchmarks/gpu/requirements.txt, without a"
            " network from the wheels of `make bench-gpu-wheels`"
        )
    if absent := [name for name in OWN if find_spec(name) is None]:
        return f"missing modules of Shoal: {', '.join(absent)}; run `make bench-gpu`, which sets PYTHONPATH"
    return None
