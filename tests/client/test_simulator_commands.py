import subprocess
import sys

import pytest


@pytest.mark.integration
@pytest.mark.parametrize(("command", "option"), [("simulate", "--poisson"), ("record", "--seconds")])
def test_the_command_hands_over_to_the_proxys_own(command: str, option: str) -> None:
    given = [sys.executable, "-m", "shoal", command, "--help"]
    result = subprocess.run(given, capture_output=True, text=True, timeout=60, check=False)

    assert result.returncode == 0
    assert f"Usage: shoal {command}" in result.stdout
    assert option in result.stdout
