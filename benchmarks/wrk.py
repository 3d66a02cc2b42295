"""Load from wrk, https://github.com/wg/wrk: find it, run it, read what it measured.

Every connection sends its next request when the last is answered (a closed loop), so latencies are
those at that many clients, not at a fixed rate.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.debian import PackageError, unpack

SCRIPT = Path(__file__).parent / "row.lua"
PACKAGES = ("wrk", "libluajit-5.1-2", "libluajit-5.1-common")
HOW_TO_INSTALL = "install wrk (Debian, Ubuntu: apt-get install wrk; macOS: brew install wrk)"


class WrkError(Exception):
    """wrk is missing, or a run failed."""


@dataclass(frozen=True, slots=True)
class Wrk:
    """An installed wrk: its command, and where its libraries lie when not in the usual place."""

    command: str
    library_path: str = ""

    def run(self, load: "Load") -> "Measurement":
        """Send the load.

        Raises:
            WrkError: wrk failed, or a request was not answered with 2xx or 3xx.
        """
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / str(number) for number in range(1 + len(load.more_bodies))]
            for path, body in zip(paths, (load.body, *load.more_bodies), strict=True):
                path.write_bytes(body)
            return self._run(load, map(str, paths))

    def _run(self, load: "Load", body_paths: Iterable[str]) -> "Measurement":
        headers = [f"{name}: {value}" for name, value in load.headers.items()]
        result = subprocess.run(
            [
                self.command,
                "--threads=1",
                f"--connections={load.connections}",
                f"--duration={load.duration_s}s",
                f"--timeout={load.timeout_s}s",
                f"--script={SCRIPT}",
                load.url,
                "--",
                *body_paths,
                *headers,
            ],
            env=os.environ | ({"LD_LIBRARY_PATH": self.library_path} if self.library_path else {}),
            capture_output=True,
            text=True,
            timeout=load.duration_s + 30,
            check=False,
        )
        if result.returncode != 0:
            raise WrkError(f"wrk ended with status {result.returncode}: {result.stderr.strip()}")
        return parse(result.stdout)


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent to where, over how many connections, for how many whole seconds.

    Bodies are sent in turn; each request has an ``x-request-id`` and a ``traceparent`` of its own.
    """

    url: str
    body: bytes
    connections: int
    duration_s: int
    headers: Mapping[str, str] = field(default_factory=dict)
    more_bodies: Sequence[bytes] = ()
    timeout_s: int = 10


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one run measured."""

    requests: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float


def parse(output: str) -> Measurement:
    """Read the line of JSON that row.lua prints after wrk's own report.

    Raises:
        WrkError: there is no such line, nothing was answered, or requests failed.
    """
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise WrkError(f"wrk printed no measurement: {output.strip()[-500:]}")
    measured: dict[str, int] = json.loads(lines[-1])
    if measured["failures"] or not measured["requests"]:
        raise WrkError(f"{measured['failures']} requests failed, {measured['requests']} were answered")
    return Measurement(
        requests=measured["requests"],
        requests_per_s=measured["requests"] / (measured["duration_us"] / 1e6),
        p50_ms=measured["p50_us"] / 1e3,
        p99_ms=measured["p99_us"] / 1e3,
    )


def find_wrk(tools: Path) -> Wrk:
    """Return wrk from PATH, else from ``tools``, where Debian's package is unpacked when missing.

    Raises:
        WrkError: it is not there and cannot be fetched; the message says how to install it.
    """
    if command := shutil.which("wrk"):
        return Wrk(command)
    folder = tools / "wrk"
    if not (folder / "usr/bin/wrk").is_file():
        try:
            unpack(folder, PACKAGES)
        except PackageError as error:
            raise WrkError(f"no wrk on PATH, and its package cannot be fetched: {HOW_TO_INSTALL}; {error}") from error
    libraries = sorted({str(path.parent) for path in folder.glob("usr/lib/**/*.so.*")})
    return Wrk(str(folder / "usr/bin/wrk"), os.pathsep.join(libraries))
