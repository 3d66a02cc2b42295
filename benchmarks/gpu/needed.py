"""Packages that the benchmark needs, and what this machine does not have of them."""

import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
ALSO = ("numpy", "torch")
"""Of the machine, because their builds depend on the GPU."""
OWN = {"shoal": "client", "shoal_proxy": "proxy", "shoal_runtime": "runtime", "shoal_schema": "schema"}
"""Package -> its directory in the checkout."""
ROOT = Path(__file__).parents[2]


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


def differing(installed: Path, checkout: Path) -> list[str]:
    """Return the modules of a package that are installed and differ from the checkout's."""
    paths = [path.relative_to(installed) for path in installed.rglob("*.py")]
    return [str(each) for each in paths if not same(installed / each, checkout / each)]


def same(path: Path, other: Path) -> bool:
    """Return whether both files exist with the same content."""
    return other.is_file() and path.read_bytes() == other.read_bytes()


def what_is_missing() -> str | None:
    """Return one sentence that states what to install and how; None if nothing is missing."""
    if absent := missing(ALSO):
        return f"missing packages: {', '.join(absent)}; install the builds for this machine's GPU"
    if absent := missing(required(REQUIREMENTS.read_text(encoding="utf-8"))):
        return (
            f"missing packages: {', '.join(absent)}; install them from benchmarks/gpu/requirements.txt, without a"
            " network from the wheels of `make bench-gpu-wheels`"
        )
    for name, directory in OWN.items():
        found = find_spec(name)
        if found is None or not found.submodule_search_locations:
            return f"the package {name} is not on the path; run `make bench-gpu`, which sets PYTHONPATH"
        if differing(Path(next(iter(found.submodule_search_locations))), ROOT / directory / name):
            return f"the installed package {name} differs from this checkout; run `make bench-gpu-wheels` again"
    return None
