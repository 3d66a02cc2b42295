import pytest

from shoal.serving.supervision import Exit, cause, exit_message, is_final


def exit_(role: str, returncode: int, *, why: str = "", served: bool = False) -> Exit:
    return Exit(role, returncode, why, served)


@pytest.mark.parametrize(
    ("ended", "final"),
    [
        pytest.param(exit_("runtime", 3), True, id="cannot load"),
        pytest.param(exit_("runtime", 3, served=True), True, id="cannot load the next time"),
        pytest.param(exit_("runtime", 4), False, id="lost its device"),
        pytest.param(exit_("runtime", -9), False, id="killed while loading"),
        pytest.param(Exit("runtime", -11, "", served=False, crashes=2), False, id="killed while loading, twice"),
        pytest.param(Exit("runtime", -11, "", served=False, crashes=3), True, id="killed while loading, each time"),
        pytest.param(Exit("proxy", -11, "", served=False, crashes=3), False, id="proxy killed"),
        pytest.param(exit_("runtime", 2), True, id="refused its settings"),
        pytest.param(exit_("runtime", 1, served=True), False, id="crashed while serving"),
        pytest.param(exit_("proxy", 1), True, id="proxy could not start"),
        pytest.param(exit_("proxy", 3), True, id="proxy with the runtime's status"),
        pytest.param(exit_("proxy", -11, served=True), False, id="proxy crashed"),
        pytest.param(exit_("proxy", 0), True, id="proxy was drained"),
        pytest.param(exit_("runtime", 0), False, id="runtime ended without being asked"),
    ],
)
def test_exit_is_final_if_a_restart_would_repeat_it(ended: Exit, final: bool) -> None:
    assert is_final(ended) is final


@pytest.mark.parametrize(
    ("ended", "sentence"),
    [
        (exit_("runtime", 3, why="no such file"), "the model cannot be loaded: no such file"),
        (
            exit_(
                "runtime",
                3,
                why="2026-11-21T03:44:01.703Z CRITICAL shoal_runtime.serving the model cannot be loaded: x",
            ),
            "the model cannot be loaded: x",
        ),
        (
            exit_("proxy", 1, why="2026-11-21T03:44:01.703Z ERROR asyncio lost", served=True),
            "the proxy exited with status 1: lost",
        ),
        (exit_("runtime", -9, why="model is ready"), "the runtime was killed by SIGKILL"),
        (exit_("runtime", 9, served=True), "the runtime exited with status 9; it logged no cause"),
        (exit_("runtime", 3), "the model cannot be loaded (exit status 3); it logged no cause"),
        (exit_("runtime", -99), "the runtime was killed by signal 99"),
        (
            exit_("proxy", 2, why="shoal-proxy: No module named 'uvicorn': pip install \"shoal[proxy]\""),
            "the proxy cannot start: No module named 'uvicorn': pip install \"shoal[serve]\""
            ' (or "shoal[serve-light]", for a model that needs no PyTorch)',
        ),
        (
            exit_("runtime", 3, why='the model cannot be loaded: it needs PyTorch: pip install "shoal[runtime,keras]"'),
            'the model cannot be loaded: it needs PyTorch: pip install "shoal[serve,keras]"',
        ),
        (
            exit_("runtime", 2, why='ERROR no uvloop: pip install "shoal[runtime]" (or "shoal[runtime-light]", for x)'),
            'the runtime cannot start: ERROR no uvloop: pip install "shoal[serve]" (or "shoal[serve-light]", for x)',
        ),
        (
            # Nothing of Shoal's is missing: its own advice stands.
            exit_("runtime", 3, why="importing handler.py failed: No module named 'xgboost': pip install xgboost"),
            "the model cannot be loaded: importing handler.py failed: No module named 'xgboost': pip install xgboost",
        ),
        (
            exit_("proxy", 2, why="shoal-proxy: SHOAL_QUEUE_MAX_BYTES must be 1024 to 10, not 0"),
            "the proxy cannot start: queue.maxBytes (SHOAL_QUEUE_MAX_BYTES) must be 1024 to 10, not 0",
        ),
    ],
)
def test_exit_is_described_in_one_sentence(ended: Exit, sentence: str) -> None:
    assert exit_message(ended) == sentence


TRACEBACK = """\
Traceback (most recent call last):
  File "handler.py", line 3, in load
    raise ValueError("no weights\\nat all")
ValueError: no weights
at all
"""


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("", ""),
        ("reading weights\n", ""),
        ("2026-11-21T03:44:01.703Z INFO shoal_runtime event=model_ready name=cat\n", ""),
        (
            "2026-11-21T03:44:01.703Z ERROR shoal_runtime no more memory\n",
            "2026-11-21T03:44:01.703Z ERROR shoal_runtime no more memory",
        ),
        ("2026-11-21T03:44:01.703Z ERROR shoal_runtime no more memory\nloaded\n", ""),
        ("shoal_runtime: the thread preprocess_0 ended\n", "shoal_runtime: the thread preprocess_0 ended"),
        ("/usr/bin/python3: No module named shoal_proxy\n", "/usr/bin/python3: No module named shoal_proxy"),
        (f"loading\n{TRACEBACK}", "ValueError: no weights"),
        (f"{TRACEBACK}During handling of it:\n\n{TRACEBACK.replace('ValueError', 'KeyError')}", "KeyError: no weights"),
        (f"{TRACEBACK}2026-11-21T03:44:01.703Z INFO shoal_runtime event=model_ready\n", ""),
    ],
)
def test_only_an_error_or_a_traceback_at_the_end_is_a_cause(written: str, why: str) -> None:
    assert cause(written) == why
