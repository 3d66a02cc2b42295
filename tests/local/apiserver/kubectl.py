"""Runs the real kubectl."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PROGRAM = Path(sys.executable).with_name("kubectl")
LIMIT_S = 20


@dataclass(frozen=True)
class Result:
    """The result of a run of kubectl."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Kubectl:
    """kubectl with a kubeconfig, a namespace and a cache of its own."""

    config: Path
    cache: Path
    namespace: str

    def command(self, *words: str) -> list[str]:
        """Return the command line."""
        options = ["--kubeconfig", str(self.config), "--cache-dir", str(self.cache)]
        return [str(PROGRAM), *options, "-n", self.namespace, *words]

    def run(self, *words: str, stdin: str = "") -> Result:
        """Run kubectl; return its result, also after a failure."""
        done = subprocess.run(
            self.command(*words),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def __call__(self, *words: str, stdin: str = "") -> str:
        """Run kubectl; return what it printed."""
        answer = self.run(*words, stdin=stdin)
        assert answer.code == 0, answer
        return answer.out

    def refused(self, *words: str, stdin: str = "") -> str:
        """Run kubectl, which must fail; return its error."""
        answer = self.run(*words, stdin=stdin)
        assert answer.code != 0, answer
        return answer.err
