"""What the exit of a process means: start it again after a while, or give up and say why."""

import re
import signal
from dataclasses import dataclass, replace

from shoal.serving.fields import with_field_names
from shoal_schema.log_lines import read

MIN_DELAY_S = 0.5
MAX_DELAY_S = 30.0
# A process that lived this long was healthy: its next exit starts the delays from the beginning.
HEALTHY_S = 60.0

MAX_CRASHES = 3
"""Before a runtime was ever ready; bad luck does not strike that often."""

CANNOT_LOAD = 3
DEVICE_LOST = 4

# What else may say why: Python itself, when it finds no such module.
OF_PYTHON = re.compile(r"^\S*python[\d.]*: ")
TRACEBACK = "Traceback (most recent call last):"

# What one process lacks the other mostly lacks too; `serve` and `serve-light` bring both.
ONE_PROCESS = re.compile(r'(?<="shoal\[)(runtime|proxy)\b')
PROXY_ALONE = '"shoal[proxy]"'


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often a process died in a row; delays double from 0.5 s up to 30 s."""

    exits: int = 0

    @property
    def delay_s(self) -> float:
        """The wait before the next start; 0 before the first exit."""
        if not self.exits:
            return 0.0
        return min(MAX_DELAY_S, MIN_DELAY_S * 2.0 ** min(self.exits - 1, 16))


def after_exit(backoff: Backoff, *, started_s: float, now_s: float) -> Backoff:
    """Return the back-off after a process that started at ``started_s`` died at ``now_s``."""
    healthy = now_s - started_s >= HEALTHY_S
    return replace(backoff, exits=1 if healthy else backoff.exits + 1)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended.

    Attributes:
        role: ``runtime`` or ``proxy``.
        returncode: exit status, or minus the signal's number.
        cause: the line in which it says why; empty when it said nothing.
        served: it had been ready before, so its settings are good.
        crashes: how often a signal killed it, this time included, before it was ever ready.
    """

    role: str
    returncode: int
    cause: str
    served: bool
    crashes: int = 0


def cause(written: str) -> str:
    """Return the line in which a process says why it ended, from the last that it wrote; empty if it did not say.

    What it wrote last is mostly about something else. It tells of the end if it is an error, or a traceback.
    """
    lines = written.rstrip().splitlines()
    if not lines or _complains(lines[-1]):
        return lines[-1].strip() if lines else ""
    if TRACEBACK not in lines:
        return ""
    # A traceback's own lines are indented, and the message of an exception may have several.
    after = lines[len(lines) - lines[::-1].index(TRACEBACK) :]
    raised = [line for line in after if line.strip() and not line.startswith(" ")]
    told_since = any(read(line) for line in raised)
    return raised[0].strip() if raised and not told_since else ""


def _complains(line: str) -> bool:
    said = read(line)
    return said.level in ("ERROR", "CRITICAL") if said else OF_PYTHON.match(line) is not None


def takes_leave(line: bytes) -> bool:
    """Return whether a process that ends by its own decision says why in this line: it is told in our sentence."""
    if b"CRITICAL" not in line and not line.startswith(b"shoal"):  # most are not, and each line comes by here
        return False
    said = read(line.decode(errors="replace"))
    return said is not None and said.is_last


def is_final(exit_: Exit) -> bool:
    """Return whether starting the process again would only repeat the exit.

    A runtime that cannot load will not load the next time. A process that chose to exit before it
    ever served was started wrongly (a setting out of range, a missing package). A signal or a lost
    device may be bad luck; a signal at each of several starts, before the first answer, is the model's file.
    """
    if was_drained(exit_) or _crashes(exit_):
        return True
    if exit_.role == "runtime" and exit_.returncode in (CANNOT_LOAD, DEVICE_LOST):
        return exit_.returncode == CANNOT_LOAD
    return exit_.returncode > 0 and not exit_.served


def was_drained(exit_: Exit) -> bool:
    """Return whether the proxy ended in order: somebody who may stop the server asked it to, with ``POST /drain``."""
    return exit_.role == "proxy" and exit_.returncode == 0


def _crashes(exit_: Exit) -> bool:
    return exit_.role == "runtime" and exit_.crashes >= MAX_CRASHES


def exit_message(exit_: Exit) -> str:
    """Return a sentence that says how the process ended, and why if it said so."""
    if exit_.role == "runtime" and exit_.returncode == CANNOT_LOAD:
        how = "the model cannot be loaded"
    elif exit_.returncode > 0 and is_final(exit_):
        how = f"the {exit_.role} cannot start"
    elif exit_.returncode < 0:
        how = f"the {exit_.role} was killed by {_signal_name(-exit_.returncode)}"
    else:
        how = f"the {exit_.role} exited with status {exit_.returncode}"
    if _crashes(exit_):
        return (
            f"{how} each of {exit_.crashes} times that it loaded the model or warmed it up: the model's file may be"
            " damaged, or made to do so, or the machine's memory too small; export it again, or serve a smaller one"
        )
    if exit_.returncode < 0:
        return how  # Its last line was about something else.
    said = read(exit_.cause)
    why = (said.message if said else exit_.cause).removeprefix(f"{how}: ")
    if why:
        light = f'{PROXY_ALONE} (or "shoal[proxy-light]", for a model that needs no PyTorch)'
        why = ONE_PROCESS.sub("serve", why.replace(PROXY_ALONE, light))
        return f"{how}: {with_field_names(why)}"
    status = "" if "status" in how else f" (exit status {exit_.returncode})"
    return f"{how}{status}; it did not say why"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
