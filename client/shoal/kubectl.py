"""Requests to a cluster through kubectl, and ports of its pods on this machine."""

import asyncio
import contextlib
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from shoal.errors import ConnectionFailed
from shoal.serving.errors import LocalError

_FORWARDING: Final = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ->")


def kubectl(needed_by: str, context: str, remedy: str = "") -> tuple[str, ...]:
    """Return the command, with the option that selects the cluster; '' stands for the current context.

    Args:
        needed_by: the option or command that needs kubectl, for the error.
        context: name of the kubeconfig's context.
        remedy: the end of the error.

    Raises:
        LocalError: kubectl is not installed.
    """
    program = shutil.which("kubectl")
    if program is None:
        raise LocalError(f"{needed_by} needs kubectl, which is not installed{remedy}")
    return (program, *(("--context", context) if context else ()))


async def output_of(command: Sequence[str], *words: str) -> str:
    """Run kubectl and return its output.

    Raises:
        LocalError: kubectl failed; the message is kubectl's.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, *words, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    output, error = await process.communicate()
    if process.returncode != 0:
        reason = error.decode(errors="replace").strip() or f"exit status {process.returncode}"
        raise LocalError(f"kubectl {' '.join(words)}: {reason}")
    return output.decode()


@asynccontextmanager
async def forwarded(command: Sequence[str], namespace: str, pod: str, port: int) -> AsyncIterator[str]:
    """Forward a port of a pod to this machine during the block; yield the local URL.

    Raises:
        ConnectionFailed: kubectl failed; the message is kubectl's.
    """
    words = (*command, "--namespace", namespace, "port-forward", f"pod/{pod}", f":{port}")
    pipe = asyncio.subprocess.PIPE
    # Local port 0: kubectl chooses one and prints it.
    process = await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = (await process.stdout.readline()).decode(errors="replace")
        match = _FORWARDING.match(line)
        if match is None:
            raise ConnectionFailed((await process.stderr.read()).decode(errors="replace").strip() or line)
        yield f"http://127.0.0.1:{match[1]}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()
