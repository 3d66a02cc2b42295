"""What a model's code raises, made safe: no exception of it ends a thread, and none's words break an answer.

Light: also what runs before torch is imported needs it.
"""

import sys
import traceback
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

HANDLER_FAULTS: Final = (BaseException,)
"""What a model's code may raise. `sys.exit()` in a library, a KeyboardInterrupt or a CancelledError of its own are its
faults like any other: the process's own signals reach the event loop only, never the threads that run such code."""

MAX_TEXT: Final = 4096
"""Longest message in characters; what is longer is cut."""
CUT: Final = " ..."

DISTRIBUTIONS: Final = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Packages that handlers import and whose name on the index is not that of their module."""


class Escaped(Exception):
    """Stands for what is not an `Exception` but came out of a thread all the same; it is the cause."""


def describe(error: BaseException) -> str:
    """Return the exception as a message: its type, and what it says."""
    text, kind = said(error), type(error).__name__
    if isinstance(error, Escaped):
        return text
    return message_text(f"{kind}: {text}" if text else kind)


def remedy(error: BaseException) -> str:
    """Return what to do about a module that a handler's start lacks: its own need, none of Shoal's extras."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    top = error.name.partition(".")[0]
    # Part of a package that is here: the name is misspelt, or another version of the package is meant.
    return "" if top in sys.modules else f": pip install {DISTRIBUTIONS.get(top, top)}"


def said(error: BaseException) -> str:
    """Return what the exception says, if it can say it."""
    try:
        return message_text(str(error))
    except HANDLER_FAULTS as fault:
        return f"its own message raised {type(fault).__name__}"


def message_text(text: str) -> str:
    """Return a message that every encoder takes: bounded, and lone surrogates escaped."""
    text = text[: MAX_TEXT + 1]
    if not text.isascii():
        text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - len(CUT)]}{CUT}"


def contained(error: BaseException) -> Exception:
    """Return the error, or an `Escaped` for one that would end the thread or the event loop that awaits it."""
    # A future refuses StopIteration, so that whoever waits for it would wait for ever.
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    escaped = Escaped(describe(error))
    escaped.__cause__ = error
    return escaped


def run_contained(function: Callable[[], T]) -> T:
    """Call the function in a thread that others rely on; what it raises is always an `Exception`."""
    try:
        return function()
    except HANDLER_FAULTS as error:
        safe = contained(error)
        if safe is error:
            raise
        raise safe from error


def own_traceback(error: BaseException) -> str:
    """Return the traceback from the first frame that is neither ours nor the import system's."""
    trace = error.__traceback__
    # By the module's name: where compiled, a frame's file is the source that it was compiled from.
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__"))
        if not name.startswith(("shoal_runtime.", "importlib._bootstrap", "_frozen_importlib")):
            break
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    return "".join(message_text(line) for line in lines).rstrip()
