"""install.py: which build of torch is installed how, and what a person sees of it."""

import io
import json
import sys
from collections.abc import Sequence

import pytest

from tests.project.scripts import ROOT, load

install = load("install")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("wanted", "linux", "gpu", "cuda", "ways"),
    [
        # PyPI's torch, no GPU: PyTorch's CPU build, and PyPI's only where that is out of reach.
        ("auto", True, False, True, [("uv", "cpu"), ("pip", "cuda")]),
        ("auto", True, True, True, [("pip", "cuda")]),
        ("cpu", True, True, True, [("uv", "cpu"), ("pip", "cuda")]),
        ("pip", True, False, True, [("pip", "cuda")]),
        # A CPU build in pip's configured index is used.
        ("auto", True, False, False, [("pip", "cpu")]),
        ("auto", False, False, True, [("pip", "cpu")]),
    ],
)
def test_without_a_gpu_nobody_gets_cuda_unless_there_is_nothing_else(
    wanted: str, linux: bool, gpu: bool, cuda: bool, ways: Sequence[tuple[str, str]]
) -> None:
    assert list(install.torch_ways(wanted, linux=linux, gpu=gpu, pip_brings_cuda=lambda: cuda)) == ways


@pytest.mark.parametrize(
    ("requires", "brings"),
    [
        (["filelock", 'nvidia-cudnn-cu13==9.20.0.48; platform_system == "Linux"'], True),
        (['cuda-toolkit[cublas]==13.0.3; platform_system == "Linux"', "sympy"], True),
        (["filelock", "sympy>=1.13.3", "networkx>=2.5.1"], False),
        (None, False),
    ],
)
def test_cuda_is_told_by_what_torch_asks_for(requires: list[str] | None, brings: bool) -> None:
    metadata = {"name": "torch"} if requires is None else {"name": "torch", "requires_dist": requires}
    assert install.brings_cuda(json.dumps({"install": [{"metadata": metadata}]})) is brings


PIP_SAYS = [
    "Collecting torch==2.13.0\n",
    "  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (20.0 MB)\n",
    "Progress 0 of 20000000\n",
    "Progress 8000000 of 20000000\n",
    "Progress 20000000 of 20000000\n",
    "  Downloading sympy-1.14.0-py3-none-any.whl (1.0 MB)\n",
    "Progress 1000000 of 1000000\n",
    "Installing collected packages: sympy, torch\n",
]


def test_a_log_gets_one_line_for_each_large_file() -> None:
    out = io.StringIO()
    install.show_progress(PIP_SAYS, install.Downloads(out))
    assert out.getvalue().splitlines() == [
        "  20 MB downloaded: torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "  unpacking 2 packages",
    ]


def test_a_terminal_gets_one_line_that_grows() -> None:
    out = Terminal()
    install.show_progress(PIP_SAYS, install.Downloads(out))
    steps = out.getvalue().replace("\x1b[K", "").split("\r")
    assert [step.split(":")[0].strip() for step in steps] == [
        "",
        "0 MB downloaded",
        "8 MB downloaded",
        "20 MB downloaded",
        "21 MB downloaded",
        "unpacking 2 packages",
    ]


def test_what_several_commands_fetch_is_added_up() -> None:
    downloads = install.Downloads(io.StringIO())
    install.show_progress(PIP_SAYS, downloads)
    install.show_progress(PIP_SAYS, downloads)
    assert downloads.arrived_bytes == 42_000_000
    assert "  41 MB downloaded: torch-2.13.0" in downloads.out.getvalue()


def test_the_end_says_what_was_fetched_and_what_is_here() -> None:
    summary_text = install.summary(61.2, 42_000_000)
    assert summary_text.startswith("Installed in 61 s: 42 MB downloaded by pip, ")
    assert f" MB in {sys.prefix}; torch 2." in summary_text


def test_the_size_is_said_before_anything_is_fetched() -> None:
    sizes = [install.announcement("demo", build, how=how) for how, build in (("uv", "cpu"), ("pip", "cuda"))]
    cpu, cuda = (int(text.split("about ")[1].split(" MB")[0]) for text in sizes)
    assert 300 < cpu < 1500
    assert cuda > cpu + 2000
    assert "with CUDA" in sizes[1]
    assert "PIP_FIND_LINKS" in sizes[1]
    assert "PIP_FIND_LINKS" not in sizes[0]


def test_the_pin_is_the_constraints_own() -> None:
    assert install.torch_pin((ROOT / "constraints.txt").read_text()).startswith("torch==")


def test_a_failing_pip_shows_its_last_lines(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(install.InstallError, match="pip install failed"):
        install.pip(install.Downloads(io.StringIO()), "install", "--no-index", "a-package-that-does-not-exist")
    assert "a-package-that-does-not-exist" in capfd.readouterr().err
