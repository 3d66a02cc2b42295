import threading

from shoal_runtime.readiness import Readiness, RuntimePhase
from shoal_runtime.storage.load_time_limit import load_time_limit

PATIENCE_S = 20.0


def test_what_takes_too_long_ends_with_a_line_that_names_its_last_step() -> None:
    readiness, output, ended = Readiness(), list[str](), threading.Event()

    def end(message: str) -> None:
        output.append(message)
        ended.set()

    readiness.progress("downloading 40 %")
    with load_time_limit(0.01, "SHOAL_MODEL_FETCH_TIMEOUT_S", readiness, grace_s=0.01, end=end):
        assert ended.wait(PATIENCE_S)

    assert output == [
        "the model cannot be loaded: downloading 40 % takes longer than 0.01 s (SHOAL_MODEL_FETCH_TIMEOUT_S)"
    ]
    assert readiness.phase is RuntimePhase.LOST


def test_what_ends_in_time_goes_on() -> None:
    readiness, output = Readiness(), list[str]()

    with load_time_limit(3600.0, "SHOAL_MODEL_LOAD_TIMEOUT_S", readiness, end=output.append):
        pass

    assert output == []
    assert readiness.phase is RuntimePhase.STARTING
