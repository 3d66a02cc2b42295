"""Each curl of docs/protocols.md, run as it stands against a real runtime and proxy."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```sh\n(.*?)```(?:\n```json\n(.*?)```)?", re.DOTALL)
BLOCKS = BLOCK.findall((ROOT / "docs" / "protocols.md").read_text())
PICTURE_BLOCKS = [block for block, _ in BLOCKS if "picture.jpg" in block]
ANSWERED_BLOCKS = [(block, answer) for block, answer in BLOCKS if answer]
CAT = """\
from shoal_runtime import TensorSpec

class Cat:
    inputs = [TensorSpec("image", "BYTES", [-1], content_type="image/jpeg,image/png")]
    outputs = [TensorSpec("label", "BYTES", [-1])]

    def forward(self, images):
        return [f"{len(image)} bytes of cat" for image in images]
"""

pytestmark = pytest.mark.integration


@contextmanager
def served(target: Path) -> Iterator[str]:
    """Serve a model on a free port; give the server's address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal", "serve", str(target), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        text=True,
    )
    assert process.stdout is not None
    try:
        output = ""
        for line in process.stdout:
            output += line
            if "listening on" in line:
                break
        yield output.partition("listening on http://")[2].partition(",")[0]
    finally:
        process.terminate()
        process.communicate(timeout=60)


def run(block: str, address: str, folder: Path) -> str:
    """Run a block of the page, with the server's address in place of the page's."""
    script = block.replace("127.0.0.1:8080", address).replace("curl ", "curl -sS ")
    ended = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=30, check=True)
    return ended.stdout


@pytest.fixture(scope="module")
def adder() -> Iterator[str]:
    with served(ROOT / "examples" / "adder") as address:
        yield address


@pytest.fixture(scope="module")
def cat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("models") / "cat"
    folder.mkdir()
    (folder / "handler.py").write_text(CAT)
    with served(folder) as address:
        yield address


@pytest.mark.parametrize(("block", "answer"), ANSWERED_BLOCKS)
def test_a_curl_gives_the_answer_beside_it(adder: str, tmp_path: Path, block: str, answer: str) -> None:
    assert run(block, adder, tmp_path).strip() == answer.strip()


@pytest.mark.parametrize("block", PICTURE_BLOCKS)
def test_a_curl_with_a_picture_is_answered(cat: str, tmp_path: Path, block: str) -> None:
    (tmp_path / "examples" / "cat").mkdir(parents=True)
    (tmp_path / "examples" / "cat" / "picture.jpg").write_bytes(b"\xff\xd8\xff")

    assert "3 bytes of cat" in run(block, cat, tmp_path)


def test_the_page_shows_every_infer_route() -> None:
    blocks = " ".join(block for block, _ in BLOCKS)

    assert len(ANSWERED_BLOCKS) == 7
    assert len(PICTURE_BLOCKS) == 5
    assert all(route in blocks for route in (":predict", "/infer", "/predictions/"))
