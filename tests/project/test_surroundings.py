"""The tests hold wherever they are started."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[2]
INTERRUPTED = "tests/client/test_ending.py::test_ctrl_c_in_the_middle_of_start_up_exits_130_without_a_word"


@pytest.mark.integration
def test_ctrl_c_is_tested_also_where_it_is_ignored_as_behind_nohup() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "numpy-shoal-", INTERRUPTED]
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    done = subprocess.run(ignoring, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_no_property_fails_because_the_machine_is_busy() -> None:
    assert settings.default is not None
    assert settings.default.deadline is None
