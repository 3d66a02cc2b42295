"""Waits for what a cluster does in its own time."""

import time
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 60.0


def eventually(check: Callable[[], Any], explain: Callable[[], str] = str, within_s: float = TIMEOUT_S) -> Any:
    """Return what ``check`` returns as soon as that is true."""
    deadline_s = time.monotonic() + within_s
    while not (result := check()):
        assert time.monotonic() < deadline_s, f"not within {within_s:g} s\n{explain()}"
        time.sleep(0.1)
    return result
