"""A reader's shell: one bash for a whole page, in a scratch copy of the clone.

Where the machine lets it, the shell has networks and processes of its own: every page can use port 8080, and whatever
it leaves running ends with it.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from tests.docs.outputs import difference
from tests.docs.pages import PageError
from tests.docs.surroundings import apart

_PATIENCE_S = 90.0
_PRELUDE = """set -m
stop() { kill -INT -- "-$1" 2>/dev/null; wait "$1"; }
trap 'for job in $(jobs -p); do stop "$job"; done' EXIT
"""


@dataclass(frozen=True)
class Ended:
    """What a command did. Paths are the reader's, who lives in ``/home/me``."""

    status: int
    stdout: str
    stderr: str


class TookTooLongError(PageError):
    """A command of a page has not ended yet."""


class Shell:
    """One bash, from the first block of a page to its last, in the folder `clone`.

    Args:
        scratch: an empty folder with a short path, for sockets lie in it.
        activated: the environment's commands are there from the start.
        patience_s: how long a command may take, and a server to start.
    """

    def __init__(self, scratch: Path, *, activated: bool, patience_s: float = _PATIENCE_S) -> None:
        self.scratch = scratch
        self.clone = scratch / "home" / "me" / "shoal"
        self._work = scratch / "work"
        self._activated = activated
        self._patience_s = patience_s
        self._served = 0
        self._server: str | None = None

    def __enter__(self) -> "Shell":
        for folder in (self.clone, self._work, self.scratch / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        # A reader recognizes an error response; the test needs a status.
        (self.clone.parent / ".curlrc").write_text("fail\nshow-error\n")
        status_pipe, self._tell = os.pipe()
        self._told = os.fdopen(status_pipe)
        self._bash = subprocess.Popen(
            [*(apart() or ()), "bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # messages of ended jobs
            cwd=self.clone,
            env=self._environment(),
            pass_fds=[self._tell],
            start_new_session=True,
            text=True,
        )
        os.close(self._tell)
        self._send(("ip link set lo up\n" if apart() else "") + _PRELUDE)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End what still runs as Ctrl-C would; what ignores that is killed."""
        pipe: IO[str] | None = self._bash.stdin
        assert pipe is not None
        try:
            pipe.close()
            # Where a command did not end, bash will not either.
            self._bash.wait(0 if isinstance(error, TookTooLongError) else 20)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            _kill_session(self._bash.pid)
            self._bash.wait()
        finally:
            self._told.close()

    def run(self, page: str, line: int, script: str, *, may_fail: bool = False) -> Ended:
        """Run a script that stands in a page from that line on.

        Raises:
            PageError: a command failed, unless it may, or takes too long.
        """
        now, out, err = (self._work / name for name in ("now", "out", "err"))
        source = self._written(page, line, script, now, stop_at_errors=not may_fail)
        self._send(f"source {source} </dev/null >{out} 2>{err} {self._tell}>&-; echo $? >&{self._tell}\n")
        status = self._answer()
        ended = Ended(int(status or 1), self._read(out), self._read(err))
        if status is None or (ended.status and not may_fail):
            kind, why = (TookTooLongError, "takes too long") if status is None else (PageError, "fails")
            raise kind(f"{self._at(now, page, line)} {why}\n{ended.stdout}{ended.stderr}".rstrip())
        return ended

    def save(self, name: str, text: str) -> None:
        """Write a file into the clone."""
        path = self.clone / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run_python(self, page: str, line: int, code: str) -> Ended:
        """Run a program that stands in a page from that line on, so that tracebacks name the page's lines."""
        program = self._work / "python" / page
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("\n" * (line - 1) + code)
        return self.run(page, line, f"{sys.executable} {program}")

    def serve(self, page: str, line: int, script: str, *, shown: str, ready: str) -> None:
        """Start a server beside what follows, in place of the one before, and wait until it has said what is shown.

        Without a shown output it checks readiness. Other lines, as of a slow start, may come between.

        Raises:
            PageError: it ended, or did not say so in time.
        """
        self.stop()
        self._served += 1
        now, out, err, gone = (self._work / f"server-{self._served}.{kind}" for kind in ("now", "out", "err", "gone"))
        source = self._written(page, line, script, now, stop_at_errors=True)
        files = f"</dev/null >{out} 2>{err} {self._tell}>&-"
        self._send(f"( trap 'echo $? >{gone}' EXIT; source {source} ) {files} & server=$!\n")
        self._server = f"{page}:{line}"
        until = time.monotonic() + self._patience_s
        while missing := _missing(shown, ready, self._read(out), self._read(err)):
            if gone.exists() or time.monotonic() > until:
                why = "ended" if gone.exists() else f"did not start within {self._patience_s:g} s; {missing}"
                raise PageError(f"{self._at(now, page, line)} {why}\n{self._read(out)}{self._read(err)}".rstrip())
            time.sleep(0.02)

    def stop(self) -> None:
        """Press Ctrl-C at the server, if there is one."""
        if self._server is None:
            return
        place, self._server = self._server, None
        self._send(f'set +e; stop "$server"; echo $? >&{self._tell}\n')
        if (status := self._answer()) not in {"0", "130"}:
            raise PageError(f"{place}: after Ctrl-C its exit status is {status}")

    def _environment(self) -> dict[str, str]:
        ours = str(Path(sys.prefix) / "bin")
        path = [one for one in os.environ.get("PATH", os.defpath).split(":") if one != ours]
        if self._activated:
            path.insert(0, str(self.clone / ".venv" / "bin"))
        if not shutil.which("helm"):
            path.append(str(self.clone / "tests" / "docs" / "bin"))
        kept = {name: os.environ[name] for name in ("OMP_NUM_THREADS",) if name in os.environ}
        return kept | {
            "HOME": str(self.clone.parent),
            "LANG": "C.UTF-8",
            "PATH": ":".join(path),
            "PYTHONUNBUFFERED": "1",  # as on a terminal, where lines come at once
            "TMPDIR": str(self.scratch / "tmp"),
        }

    def _written(self, page: str, line: int, script: str, now: Path, *, stop_at_errors: bool) -> str:
        """Write the script to lines of the numbers that it has in its page, so that bash names them in its errors.

        Which line and command runs is written to the file `now`.
        """
        source = self._work / page.replace("/", "-")
        here = f"${{BASH_SOURCE[0]}} == {source} && $LINENO -gt 1"
        watch = f"""[[ {here} ]] && printf "%s %s" "$LINENO" "$BASH_COMMAND" >{now}"""
        first = f"set {'-' if stop_at_errors else '+'}e; trap '{watch}' DEBUG"
        source.write_text(first + "\n" * (line - 1) + script)
        return str(source)

    def _at(self, now: Path, page: str, line: int) -> str:
        """Page, line and command that ran last."""
        number, _, command = self._read(now).partition(" ")
        return f"{page}:{number or line}: {command.strip() or 'the block'}"

    def _send(self, script: str) -> None:
        pipe: IO[str] | None = self._bash.stdin
        assert pipe is not None
        pipe.write(script)
        pipe.flush()

    def _answer(self) -> str | None:
        """The status reported by bash: empty if it exited itself, None without one in time."""
        ready, _, _ = select.select([self._told], [], [], self._patience_s)
        return self._told.readline().strip() if ready else None

    def _read(self, path: Path) -> str:
        text = path.read_text(errors="replace") if path.exists() else ""
        return text.replace(str(self.scratch), "")


def _missing(shown: str, ready: str, printed: str, logged: str) -> str | None:
    """Return the expected output that a server has not printed yet."""
    if not shown:
        return None if ready in printed + logged else f"it did not say: {ready}"
    return difference("...\n" + shown.replace("\n", "\n...\n"), printed)


def _kill_session(leader: int) -> None:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            session = int(stat.read_text().rpartition(")")[2].split()[3])
            if session == leader:
                os.kill(int(stat.parent.name), signal.SIGKILL)
