"""Decide what follows a process's exit: a restart after a delay, or the end with a cause."""

import re
import signal
from dataclasses import dataclass

from shoal_schema.process.field_names import with_field_names
from shoal_schema.process.log_lines import read

MAX_CRASHES = 3
"""Crashes before a runtime was ever ready; so many are not a coincidence."""

# Exit statuses of the runtime.
CANNOT_LOAD = 3
DEVICE_LOST = 4

OF_PYTHON = re.compile(r"^\S*python[\d.]*: ")
"""An error of the interpreter itself, such as a missing module."""
TRACEBACK = "Traceback (most recent call last):"

# A package missing in one process is usually missing in both; the extras `serve` and `serve-light` have both.
ONE_PROCESS = re.compile(r'(?<="shoal\[)(runtime|proxy)\b')
PROXY_ALONE = '"shoal[proxy]"'


@dataclass(frozen=True, slots=True)
class Exit:
    """Exit of a process, with its cause and what preceded it."""

    role: str
    """``runtime`` or ``proxy``."""
    returncode: int
    """Exit status, or minus the signal's number."""
    cause: str
    """The line with the cause; may be empty."""
    served: bool
    """Whether the process was ready before, so that its settings are valid."""
    crashes: int = 0
    """Times that a signal killed it before it was ever ready, including this one."""


def cause(written: str) -> str:
    """Return the line with the cause of an exit, from the last output of a process; may be empty.

    The last output is usually unrelated. It is the cause if it is an error or a traceback.
    """
    lines = written.rstrip().splitlines()
    if not lines:
        return ""
    last = read(lines[-1])
    if last.level in ("ERROR", "CRITICAL") if last else OF_PYTHON.match(lines[-1]):
        return lines[-1].strip()
    if TRACEBACK not in lines:
        return ""
    # The frames of a traceback are indented; the exception's message may have several lines.
    after = lines[len(lines) - lines[::-1].index(TRACEBACK) :]
    raised = [line for line in after if line.strip() and not line.startswith(" ")]
    # A log line after the traceback means that the process handled it and continued.
    continued = any(read(line) for line in raised)
    return raised[0].strip() if raised and not continued else ""


def is_exit_line(line: bytes) -> bool:
    """Return whether a process announces its exit in a log line."""
    if b"CRITICAL" not in line and not line.startswith(b"shoal"):  # a fast check, since every line is tested
        return False
    found = read(line.decode(errors="replace"))
    return found is not None and found.is_last


def is_final(exit_: Exit) -> bool:
    """Return whether an exit is final, because a restart cannot help.

    A restart cannot repair a model that cannot be loaded. An exit status before the process was ever ready means a
    wrong setting or a missing package. A signal or a lost device may be transient, but repeated signals before the
    process was ever ready are caused by the model's file.
    """
    if was_drained(exit_) or _crashes(exit_):
        return True
    if exit_.role == "runtime" and exit_.returncode in (CANNOT_LOAD, DEVICE_LOST):
        return exit_.returncode == CANNOT_LOAD  # a lost device may come back
    return exit_.returncode > 0 and not exit_.served


def was_drained(exit_: Exit) -> bool:
    """Return whether the proxy exited in order, after ``POST /drain``."""
    return exit_.role == "proxy" and exit_.returncode == 0


def _crashes(exit_: Exit) -> bool:
    return exit_.role == "runtime" and exit_.crashes >= MAX_CRASHES


def exit_message(exit_: Exit) -> str:
    """Return a sentence about the end of the process and its cause."""
    if exit_.role == "runtime" and exit_.returncode == CANNOT_LOAD:
        how = "the model cannot be loaded"
    elif exit_.returncode > 0 and is_final(exit_):
        how = f"the {exit_.role} cannot start"
    elif exit_.returncode < 0:
        number = -exit_.returncode
        known = {each.value: each.name for each in signal.Signals}
        how = f"the {exit_.role} was killed by {known.get(number, f'signal {number}')}"
    else:
        how = f"the {exit_.role} exited with status {exit_.returncode}"
    if _crashes(exit_):
        return (
            f"{how} {exit_.crashes} times while it loaded the model: the model's file may be damaged or malicious, or"
            " the machine's memory too small. Export the model again, or serve a smaller one"
        )
    if exit_.returncode < 0:
        return how  # the last line is unrelated to a signal
    line = read(exit_.cause)
    why = (line.message if line else exit_.cause).removeprefix(f"{how}: ")
    if why:
        # Name the extra that most users need, instead of one for a single process.
        light = f'{PROXY_ALONE} (or "shoal[proxy-light]", for a model that needs no PyTorch)'
        why = ONE_PROCESS.sub("serve", why.replace(PROXY_ALONE, light))
        return f"{how}: {with_field_names(why)}"
    status = "" if "status" in how else f" (exit status {exit_.returncode})"
    return f"{how}{status}; it logged no cause"
