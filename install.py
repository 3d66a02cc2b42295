"""Set up the environment of this Python for the demo or for development: ``make demo`` and ``make test`` call it.

On Linux PyPI's torch brings gigabytes of CUDA. Where there is no NVIDIA GPU the CPU build is installed instead: the
one that pip is configured to find, if there is one, else PyTorch's own, through uv, which knows where that lies. Where
neither can be had, it is what pip finds after all.
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
# Megabytes to download and on disk of a first installation (Linux, x86-64, Python 3.11); "dev" and CUDA are rounded.
WITHOUT_TORCH_MB = {"demo": (260, 770), "dev": (420, 1310)}
TORCH_MB = {"cpu": (200, 700), "cuda": (2740, 4760)}
WITHOUT_CUDA = (
    "\nToo much, and no use for a GPU? A CPU build of torch that pip finds is taken instead: Ctrl-C, then name its"
    " place in PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL."
)
SHOWN = ("torch", "numpy", "starlette", "uvicorn", "kopf")
LARGE_BYTES = 5_000_000
TAIL_LINES = 15
# Where nothing leads to PyTorch's index, uv's own patience is most of a minute in which nothing happens.
UV_PATIENCE = {"UV_HTTP_CONNECT_TIMEOUT": "5", "UV_HTTP_RETRIES": "2"}
TORCH_CHOICES = ("auto", "cpu", "pip")
DOWNLOADING = re.compile(r"\s*Downloading (?P<file>\S+)")
PROGRESS = re.compile(r"\s*Progress (?P<done>\d+) of (?P<total>\d+)")
UNPACKING = re.compile(r"Installing collected packages: (?P<names>.*)")


class InstallError(Exception):
    """Something cannot be installed; the message says what."""


@dataclass
class Downloads:
    """What pip has fetched so far, over all its commands, and where that is shown."""

    out: TextIO
    arrived_bytes: int = 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Install Shoal with the extra that is named; return the exit status."""
    options = parser().parse_args(arguments)
    started_s, downloads = time.monotonic(), Downloads(sys.stdout)
    try:
        install_torch(options.extra, options.torch, downloads)
        # Editable: the sources run, so nothing is compiled and what compiling needs is not fetched.
        here = ("--editable", f"{ROOT}[{options.extra}]", "--editable", str(ROOT / "local"))
        command = ("install", "--constraint", str(CONSTRAINTS), *here)
        pip(downloads, *command, environment={"SHOAL_COMPILE": "0"})
    except InstallError as error:
        sys.stderr.write(f"install: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\ninstall: interrupted; start it again to go on\n")
        return 130
    say(summary(time.monotonic() - started_s, downloads.arrived_bytes))
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser("install.py", description=__doc__)
    found.add_argument("extra", choices=WITHOUT_TORCH_MB, help="for the demo, or for development")
    builds = "auto: by whether there is a GPU; cpu: as if there were none; pip: whatever pip finds"
    found.add_argument("--torch", choices=TORCH_CHOICES, default="auto", help=builds)
    return found


def install_torch(extra: str, wanted: str, downloads: Downloads) -> None:
    """Install the pinned torch in the first way that works; say before how much will come with it and ``extra``."""
    pin = torch_pin(CONSTRAINTS.read_text())
    if is_installed(pin):
        say(f"Installing what `{extra}` needs; torch {version('torch')} is here already.")
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
    """Return how to install torch, and which build that gives, best first.

    ``pip_brings_cuda`` asks pip, which takes seconds, and only elsewhere than on Linux goes unasked.
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
    """Say whether the pinned torch is here, in whichever build."""
    try:
        return version("torch").partition("+")[0] == pin.removeprefix("torch==")
    except PackageNotFoundError:
        return False


def has_gpu() -> bool:
    """Say whether there is an NVIDIA GPU with its driver, also under WSL."""
    return any(Path("/proc/driver/nvidia").glob("gpus/*")) or shutil.which("nvidia-smi") is not None


def pip_report(pin: str) -> str:
    """Return what pip would install for ``pin`` alone, as its JSON report."""
    command = pip_command("install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet", "--report", "-", pin)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallError(f"pip finds no {pin}: {last_line(done.stderr)}")
    return done.stdout


def brings_cuda(report: str) -> bool:
    """Say whether what pip would install asks for NVIDIA's libraries, from pip's report."""
    [found] = json.loads(report)["install"]
    return any(re.match(r"(nvidia|cuda)-", each) for each in found["metadata"].get("requires_dist", ()))


def try_uv(pin: str, downloads: Downloads) -> bool:
    """Install PyTorch's CPU build with uv; say whether that worked.

    Without what it depends on: uv does not know where pip is configured to find that.
    """
    try:
        pip(downloads, "install", "uv")
    except InstallError as error:
        say(f"Without uv, {error}")
        return False
    uv = (sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, "--no-deps")
    done = subprocess.run([*uv, "--torch-backend=cpu", pin], env={**UV_PATIENCE, **os.environ}, check=False)
    if done.returncode:
        say("PyTorch's index of CPU builds cannot be reached from here.")
    return done.returncode == 0


def pip_command(*arguments: str) -> list[str]:
    """Return a command of this environment's pip."""
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]


def pip(downloads: Downloads, command: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
    """Run a command of pip's and show how far its downloads are; when it fails, show its last lines."""
    # Python compiles what it imports by itself; all that is installed would be a third of the whole time.
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
    """Pass lines on and keep the last ones that say something."""
    for line in lines:
        if not PROGRESS.match(line):
            tail.append(line)
        yield line


def show_progress(lines: Iterable[str], downloads: Downloads) -> None:
    """Turn pip's lines (``--progress-bar=raw``) into one that grows on a terminal, else into one a large file."""
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
    """Return what is said before anything is fetched."""
    download_mb, disk_mb = (sum(both) for both in zip(WITHOUT_TORCH_MB[extra], TORCH_MB[build], strict=True))
    kind = "PyTorch's CPU build, through uv" if how == "uv" else "torch as pip finds it"
    cuda, remedy = (", with CUDA", WITHOUT_CUDA) if build == "cuda" else ("", "")
    return (
        f"Installing what `{extra}` needs, {kind}{cuda}: about {download_mb} MB to download"
        f" (less where pip has them already), {disk_mb} MB on disk.{remedy}"
    )


def summary(elapsed_s: float, downloaded_bytes: int) -> str:
    """Return what is said at the end: seconds, megabytes, versions; what uv fetched, it says itself."""
    names = ", ".join(f"{name} {version(name)}" for name in SHOWN)
    disk_mb = disk_bytes(Path(sys.prefix)) / 1e6
    return (
        f"Installed in {elapsed_s:.0f} s: {downloaded_bytes / 1e6:.0f} MB downloaded by pip,"
        f" {disk_mb:.0f} MB in {sys.prefix}; {names}."
    )


def disk_bytes(folder: Path) -> int:
    """Return what the files in ``folder`` hold."""
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file() and not each.is_symlink())


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "it did not say why")


def say(text: str) -> None:
    """Tell the person at the terminal at once."""
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
