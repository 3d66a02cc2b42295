"""Install Shoal for the demo or for development, as ``make demo`` and ``make test`` do.

On Linux PyPI's torch includes gigabytes of CUDA libraries. Without an NVIDIA GPU the CPU build is installed instead:
from pip's configured index if it has one, else from PyTorch's index through uv. If neither works, pip's default build
is installed.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).parent
CONSTRAINTS = ROOT / "constraints.txt"
# Megabytes of download and disk of a first installation (Linux, x86-64, Python 3.11); "dev" and CUDA are rounded.
WITHOUT_TORCH_MB = {"demo": (260, 770), "dev": (420, 1310)}
TORCH_MB = {"cpu": (200, 700), "cuda": (2740, 4760)}
WITHOUT_CUDA = (
    "\nWithout a GPU press Ctrl-C, and name an index with a CPU build of torch in PIP_FIND_LINKS or"
    " PIP_EXTRA_INDEX_URL."
)
SHOWN = ("torch", "numpy", "starlette", "uvicorn", "kopf")
LARGE_BYTES = 5_000_000
TAIL_LINES = 15
# uv's defaults wait most of a minute for PyTorch's index where it cannot be reached.
UV_PATIENCE = {"UV_HTTP_CONNECT_TIMEOUT": "5", "UV_HTTP_RETRIES": "2"}
TORCH_CHOICES = ("auto", "cpu", "pip")
DOWNLOADING = re.compile(r"\s*Downloading (?P<file>\S+)")
PROGRESS = re.compile(r"\s*Progress (?P<done>\d+) of (?P<total>\d+)")
UNPACKING = re.compile(r"Installing collected packages: (?P<names>.*)")


class InstallError(Exception):
    """An installation failed; the message has the reason."""


@dataclass
class Downloads:
    """Bytes downloaded by all pip commands, and the stream for progress."""

    out: TextIO
    arrived_bytes: int = 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Install Shoal with an extra; return the exit status."""
    options = parser().parse_args(arguments)
    started_s, downloads = time.monotonic(), Downloads(sys.stdout)
    try:
        install_torch(options.extra, options.torch, downloads)
        here = ("--editable", f"{ROOT}[{options.extra}]", "--editable", str(ROOT / "local"))
        command = ("install", "--constraint", str(CONSTRAINTS), *here)
        pip(downloads, *command)
    except InstallError as error:
        sys.stderr.write(f"install: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\ninstall: interrupted; run it again to continue\n")
        return 130
    say(summary(time.monotonic() - started_s, downloads.arrived_bytes))
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser("install.py", description=__doc__)
    found.add_argument("extra", choices=WITHOUT_TORCH_MB, help="what to install for")
    builds = "build of torch: auto: CUDA with a GPU, else CPU; cpu: CPU; pip: pip's default"
    found.add_argument("--torch", choices=TORCH_CHOICES, default="auto", help=builds)
    return found


def install_torch(extra: str, wanted: str, downloads: Downloads) -> None:
    """Install the pinned torch in the first way that works, after printing the size of the download."""
    pin = torch_pin(CONSTRAINTS.read_text())
    if is_installed(pin):
        say(f"Installing the packages of `{extra}`; torch {version('torch')} is installed already.")
        return
    ways = torch_ways(
        wanted,
        linux=sys.platform == "linux",
        gpu=has_gpu(),
        pip_brings_cuda=lambda: brings_cuda(pip_report(pin)),
    )
    for way, build in ways:
        say(announcement(extra, build, how=way))
        if way == "uv" and not try_uv(pin, downloads):
            continue
        if way == "pip":
            pip(downloads, "install", pin, "--constraint", str(CONSTRAINTS))
        return


def torch_ways(
    wanted: str, *, linux: bool, gpu: bool, pip_brings_cuda: Callable[[], bool]
) -> tuple[tuple[str, str], ...]:
    """Return the ways to install torch and the build of each, best first.

    ``pip_brings_cuda`` queries pip, which takes seconds. It is not called outside Linux.
    """
    if not linux or not pip_brings_cuda():
        return (("pip", "cpu"),)
    if wanted == "pip" or (wanted == "auto" and gpu):
        return (("pip", "cuda"),)
    return (("uv", "cpu"), ("pip", "cuda"))


def torch_pin(constraints: str) -> str:
    """Return the line of constraints.txt that pins torch."""
    return next(line for line in constraints.splitlines() if line.startswith("torch=="))


def is_installed(pin: str) -> bool:
    """Return whether the pinned torch is installed, in any build."""
    try:
        return version("torch").partition("+")[0] == pin.removeprefix("torch==")
    except PackageNotFoundError:
        return False


def has_gpu() -> bool:
    """Return whether an NVIDIA GPU and its driver exist, also under WSL."""
    return any(Path("/proc/driver/nvidia").glob("gpus/*")) or shutil.which("nvidia-smi") is not None


def pip_report(pin: str) -> str:
    """Return pip's JSON report of an installation of ``pin`` alone."""
    command = pip_command("install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet", "--report", "-", pin)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallError(f"pip cannot find {pin}: {last_line(done.stderr)}")
    return done.stdout


def brings_cuda(report: str) -> bool:
    """Return whether a package of pip's report depends on NVIDIA's libraries."""
    [found] = json.loads(report)["install"]
    return any(re.match(r"(nvidia|cuda)-", each) for each in found["metadata"].get("requires_dist", ()))


def try_uv(pin: str, downloads: Downloads) -> bool:
    """Install PyTorch's CPU build with uv; return whether that worked.

    Its dependencies are left to pip, whose configured indexes uv does not use.
    """
    try:
        pip(downloads, "install", "uv")
    except InstallError as error:
        say(f"uv cannot be installed: {error}")
        return False
    uv = (sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, "--no-deps")
    done = subprocess.run([*uv, "--torch-backend=cpu", pin], env={**UV_PATIENCE, **os.environ}, check=False)
    if done.returncode:
        say("PyTorch's index of CPU builds cannot be reached.")
    return done.returncode == 0


def pip_command(*arguments: str) -> list[str]:
    """Return a command of this environment's pip."""
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]


def pip(downloads: Downloads, command: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
    """Run a pip command with progress of its downloads; print its last lines if it fails."""
    # Compiling bytecode of all packages would take a third of the time; Python compiles imported ones later.
    call = pip_command(command, "--progress-bar=raw", "--no-compile", *arguments)
    environ = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    with subprocess.Popen(call, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        show_progress(kept(running.stdout, tail), downloads)
    if running.returncode:
        sys.stderr.write("".join(tail))
        raise InstallError(f"pip {command} failed with exit status {running.returncode}")


def kept(lines: Iterable[str], tail: deque[str]) -> Iterable[str]:
    """Yield lines, keeping the last ones other than progress in ``tail``."""
    for line in lines:
        if not PROGRESS.match(line):
            tail.append(line)
        yield line


def show_progress(lines: Iterable[str], downloads: Downloads) -> None:
    """Print pip's raw progress (``--progress-bar=raw``): one updated line on a terminal, else a line per large file."""
    file, out = "", downloads.out
    for line in lines:
        if match := DOWNLOADING.match(line):
            file = match["file"].rpartition("/")[2]
        elif match := PROGRESS.match(line):
            done, total = int(match["done"]), int(match["total"])
            downloads.arrived_bytes += total if done == total else 0
            so_far = downloads.arrived_bytes + (done if done != total else 0)
            if out.isatty():
                out.write(f"\r\x1b[K  {so_far / 1e6:.0f} MB downloaded: {file[:60]}")
            elif done == total >= LARGE_BYTES:
                out.write(f"  {so_far / 1e6:.0f} MB downloaded: {file}\n")
        elif match := UNPACKING.match(line):
            out.write("\r\x1b[K" if out.isatty() else "")
            out.write(f"  unpacking {len(match['names'].split(', '))} packages\n")
        out.flush()


def announcement(extra: str, build: str, *, how: str) -> str:
    """Return the message before the download."""
    download_mb, disk_mb = (sum(both) for both in zip(WITHOUT_TORCH_MB[extra], TORCH_MB[build], strict=True))
    kind = "PyTorch's CPU build, through uv" if how == "uv" else "pip's default torch"
    cuda, remedy = (", with CUDA", WITHOUT_CUDA) if build == "cuda" else ("", "")
    return (
        f"Installing the packages of `{extra}`, {kind}{cuda}: about {download_mb} MB to download"
        f" (less with a warm pip cache), {disk_mb} MB on disk.{remedy}"
    )


def summary(elapsed_s: float, downloaded_bytes: int) -> str:
    """Return the message at the end: seconds, megabytes (without uv's downloads) and versions."""
    names = ", ".join(f"{name} {version(name)}" for name in SHOWN)
    disk_mb = disk_bytes(Path(sys.prefix)) / 1e6
    return (
        f"Installed in {elapsed_s:.0f} s: {downloaded_bytes / 1e6:.0f} MB downloaded by pip,"
        f" {disk_mb:.0f} MB in {sys.prefix}; {names}."
    )


def disk_bytes(directory: Path) -> int:
    """Return the size of the files below a directory."""
    return sum(each.stat().st_size for each in directory.rglob("*") if each.is_file() and not each.is_symlink())


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no error message")


def say(text: str) -> None:
    """Print text without buffering."""
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
