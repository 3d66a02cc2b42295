"""Containment of exceptions of a model's code, so that they end no thread and break no response.

This module imports little, because it also runs before torch is imported.
"""

import traceback
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

HANDLER_FAULTS: Final = (BaseException,)
"""Exceptions that a model's code may raise.

`sys.exit()` in a library, a KeyboardInterrupt or a CancelledError of its own are faults like any other: signals of the
process reach only the event loop, never the threads of such code.
"""

MAX_TEXT: Final = 4096
"""Characters of the longest message; longer ones are cut."""
CUT: Final = " ..."


class EscapedException(Exception):
    """An exception that would have ended a thread or the event loop.

    A model's code raised it, such as SystemExit or StopIteration. The original exception is the cause of this error.
    """


def describe(error: BaseException) -> str:
    """Return the type and message of an exception."""
    text, kind = exception_message(error), type(error).__name__
    if isinstance(error, EscapedException):
        return text
    return message_text(f"{kind}: {text}" if text else kind)


def exception_message(error: BaseException) -> str:
    """Return the message of an exception, even if its `__str__` raises."""
    try:
        return message_text(str(error))
    except HANDLER_FAULTS as fault:
        return f"its message cannot be formatted: {type(fault).__name__}"


def message_text(text: str) -> str:
    """Return a message that every encoder accepts: limited in length, lone surrogates escaped."""
    # Cut first: a message may have megabytes.
    text = text[: MAX_TEXT + 1]
    if not text.isascii():
        text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - len(CUT)]}{CUT}"


def as_exception(error: BaseException) -> Exception:
    """Return an exception, wrapped if it would end a thread or the event loop."""
    # Futures reject StopIteration, and the task that awaits one would never resume.
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    escaped = EscapedException(describe(error))
    escaped.__cause__ = error
    return escaped


def call_contained(function: Callable[[], T]) -> T:
    """Call a function; any exception that it raises becomes an `Exception`."""
    try:
        return function()
    except HANDLER_FAULTS as error:
        safe = as_exception(error)
        if safe is error:
            raise
        raise safe from error


def own_traceback(error: BaseException) -> str:
    """Return an exception's traceback, without the outer frames of Shoal and the import system."""
    trace = error.__traceback__
    # By module name: a compiled frame has the file name of its source.
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__"))
        if not name.startswith(("shoal_runtime.", "importlib._bootstrap", "_frozen_importlib")):
            break
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    return "".join(message_text(line) for line in lines).rstrip()
