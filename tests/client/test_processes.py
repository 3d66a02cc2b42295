"""Child processes, started for real."""

import asyncio
import io
import os
import signal
import subprocess
from pathlib import Path
from typing import cast

import pytest

from shoal.processes import Log, Output, Process


async def run(module: str) -> str:
    # A PYTHONPATH with the current directory is the user's choice.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = await Process.start(module, environment, log=None)
    assert await process.wait() == 0
    return process.last_written.splitlines()[-1]


@pytest.mark.integration
def test_a_process_runs_no_file_of_the_folder_it_is_started_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python files of the current directory, which may be a model's, are not imported."""
    (tmp_path / "this.py").write_text("print('the folder's')")
    monkeypatch.chdir(tmp_path)

    assert asyncio.run(run("this")) == "Namespaces are one honking great idea -- let's do more of those!"


def test_a_process_is_asked_to_stop_without_taking_its_exit_status_from_the_watcher() -> None:
    class Transport:
        """Knows the number of the process, and not yet that it has ended."""

        def get_pid(self) -> int:
            return child.pid

        def get_returncode(self) -> None:
            return None

    with subprocess.Popen(["sleep", "60"]) as child:
        Process(cast(asyncio.SubprocessTransport, Transport()), Output(None)).terminate()

        assert child.wait(30) == -signal.SIGTERM


def test_the_exit_line_of_an_instance_is_logged_when_the_others_continue() -> None:
    written = io.BytesIO()
    output = Output(cast(Log, written))
    ended = b"shoal_runtime: the runtime cannot continue: a forward runs longer than 3 s\n"

    output.pipe_data_received(2, ended)
    assert written.getvalue() == b"", "the message about the exit replaces it"
    output.pipe_data_received(2, b"the instance starts again\n" + ended)
    output.pipe_connection_lost(2, None)

    assert written.getvalue() == ended + b"the instance starts again\n"
    assert output.last_written == ended.decode().strip()
