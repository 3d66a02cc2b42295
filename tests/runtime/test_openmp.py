"""What torch's threads do while they wait."""

import pytest

from shoal_runtime.execution.threads import SPIN_COUNT, wait_briefly


def test_threads_sleep_soon() -> None:
    environ: dict[str, str] = {}
    wait_briefly(environ)
    assert environ == {"GOMP_SPINCOUNT": SPIN_COUNT}


@pytest.mark.parametrize("chosen", [{"GOMP_SPINCOUNT": "5"}, {"OMP_WAIT_POLICY": "active"}])
def test_settings_of_the_user_are_kept(chosen: dict[str, str]) -> None:
    environ = dict(chosen)
    wait_briefly(environ)
    assert environ == chosen
