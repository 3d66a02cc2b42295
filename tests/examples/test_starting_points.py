"""``shoal init``, ``inspect`` and ``serve`` in sequence, as a new user runs them."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from examples.server import serving
from shoal.serving.inspection import URL

pytestmark = pytest.mark.integration


def shoal(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(
        [sys.executable, "-m", "shoal", *arguments], capture_output=True, text=True, check=False, timeout=100
    )
    assert ended.returncode == status, ended.stderr
    return ended


@pytest.mark.parametrize(
    ("template", "format_", "body", "good"),
    [
        ("handler", "Handler", '{"instances": ["a lovely day"]}', lambda row: row["mood"] == "good"),
        ("sklearn", "Skops", '{"instances": [[5.1, 3.5, 1.4, 0.2]]}', lambda row: row["output-0"] == "setosa"),
        (
            "transformers",
            "Transformers",
            '{"instances": ["a lovely fish", "awful food"]}',
            lambda row: row["label"] == "good",
        ),
        ("torch", "TorchExport", '{"instances": [[0.1, 0.1], [0.9, 0.9]]}', lambda row: row[0] > 0.5),
    ],
    ids=["handler", "sklearn", "transformers", "torch"],
)
def test_a_new_folder_is_inspected_and_served_at_once(
    tmp_path: Path, template: str, format_: str, body: str, good: Any
) -> None:
    folder = tmp_path / f"my-{template}"
    shoal("init", str(folder), "--from", template)

    report = orjson.loads(shoal("inspect", str(folder), "--json").stdout)
    assert (report["name"], report["format"], report["refused"]) == (folder.name, format_, None)

    with serving(folder) as server:
        first, _ = report["first_requests"]
        for line in (first, f"curl -d '{body}' {URL}/v1/models/{folder.name}:predict"):
            curl = subprocess.run(
                line.replace(URL, server.url), shell=True, capture_output=True, text=True, check=True, timeout=30
            )
            [*rows] = orjson.loads(curl.stdout)["predictions"]
        assert good(rows[0])
        assert template != "torch" or not good(rows[1])


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "the runtime was killed by SIGKILL"),
        ("import os; os._exit(7)", "the runtime cannot start (exit status 7); it logged no cause"),
        ("import no_such_package", "pip install no_such_package"),
    ],
)
def test_a_model_whose_code_ends_the_runtime_is_told_in_one_line(tmp_path: Path, ending: str, words: str) -> None:
    (tmp_path / "handler.py").write_text(f"{ending}\n")

    ended = shoal("inspect", str(tmp_path), status=1)

    *_, last = ended.stderr.splitlines()
    assert last.startswith("shoal: ")
    assert words in last


def test_ctrl_c_ends_an_inspection_and_its_runtime(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(100)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal", "inspect", str(tmp_path)], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("inspecting ")
    runtime = int(process.stderr.readline())

    process.send_signal(signal.SIGINT)

    assert process.wait(timeout=30) == 130
    process.stderr.close()
    with pytest.raises(ProcessLookupError):
        os.kill(runtime, 0)
