"""Programs of torch.export with every kind of dynamic size, which the checks must accept unchanged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim
from torch.nn import functional

from shoal_runtime.formats.pt2_archive import read_program

AUTO = Dim.AUTO


def at_least(x: torch.Tensor) -> torch.Tensor:
    torch._check(x.shape[0] % 2 == 0)  # type: ignore[no-untyped-call]
    return x + 1


def without_gradient(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x * 2


def in_bfloat16(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x.T


def shorter(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    rows = min(x.shape[0], y.shape[0])
    return x[:rows] + y[:rows]


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "a multiple": (lambda x: x.view(x.shape[0] // 2, 2, 4), (torch.ones(6, 4),), ({0: 2 * Dim("half")},)),
    "one more": (lambda x, y: x + y[1:], (torch.ones(6, 4), torch.ones(7, 4)), ({0: Dim("n")}, {0: Dim("n") + 1})),
    "equal": (lambda x, y: x + y, (torch.ones(6, 4), torch.ones(6, 4)), ({0: AUTO}, {0: AUTO})),
    "a sum": (lambda x, y: torch.cat([x, y]), (torch.ones(6, 4), torch.ones(3, 4)), ({0: AUTO}, {0: AUTO})),
    "the smaller": (shorter, (torch.ones(6, 4), torch.ones(3, 4)), ({0: AUTO}, {0: AUTO})),
    "the larger": (
        lambda x, y: x.new_zeros(torch.sym_max(x.shape[0], y.shape[0])),  # type: ignore[no-untyped-call]
        (torch.ones(6, 4), torch.ones(3, 4)),
        ({0: AUTO}, {0: AUTO}),
    ),
    "a product": (lambda x: x.reshape(-1), (torch.ones(6, 4, 5),), ({0: AUTO, 1: AUTO},)),
    "floor division": (
        lambda x: functional.conv1d(x, torch.ones(4, 4, 3), stride=2, padding=1),
        (torch.ones(2, 4, 17),),
        ({0: AUTO, 2: AUTO},),
    ),
    "thirds": (lambda x: x.chunk(3)[0], (torch.ones(6, 4),), ({0: AUTO},)),
    "a remainder": (lambda x: functional.pad(x, (0, 0, 0, -x.shape[0] % 8)), (torch.ones(6, 4),), ({0: AUTO},)),
    "a fraction": (
        lambda x: functional.interpolate(x, scale_factor=(1.3, 1.7), mode="bilinear"),
        (torch.ones(2, 3, 16, 16),),
        ({0: AUTO, 2: AUTO, 3: AUTO},),
    ),
    "a root": (lambda x: x * x.shape[0] ** 0.5, (torch.ones(6, 4),), ({0: AUTO},)),
    "a square": (lambda x: x.new_zeros(x.shape[0] ** 2), (torch.ones(6, 4),), ({0: AUTO},)),
    "a relation": (
        lambda x, y: x + 1 if x.shape[0] > y.shape[0] else x - 1,
        (torch.ones(6, 4), torch.ones(3, 4)),
        ({0: AUTO}, {0: AUTO}),
    ),
    "a condition": (at_least, (torch.ones(6, 4),), ({0: AUTO},)),
    "unknown until it runs": (lambda x: x.nonzero(), (torch.ones(6, 4),), ({0: AUTO},)),
    "a branch": (
        lambda x: torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,)),
        (torch.ones(6, 4),),
        ({0: AUTO},),
    ),
    "bits": (lambda x, y: x & y | (x ^ y), (torch.ones(6, 4) > 0, torch.ones(6, 4) > 0), ({0: AUTO}, {0: AUTO})),
    "no gradient": (without_gradient, (torch.ones(6, 4),), ({0: AUTO},)),
    "another type": (in_bfloat16, (torch.ones(6, 4),), ({0: AUTO},)),
    "nested": (
        lambda x: {"a": x["p q"] + 1, "b-c": x["u"][0] * 2},
        ({"p q": torch.ones(6, 4), "u": [torch.ones(6, 4)]},),
        ({"p q": {0: AUTO}, "u": [{0: AUTO}]},),
    ),
}


class Module(torch.nn.Module):
    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *args: Any) -> Any:
        return self.call(*args)


def saved(path: Path, name: str) -> Path:
    call, args, dynamic = CASES[name]
    torch.export.save(torch.export.export(Module(call), args, dynamic_shapes=(dynamic,)), path)
    return path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by torch's generated code
@pytest.mark.parametrize("name", CASES)
def test_dynamic_sizes_survive_the_checks(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path / "model.pt2", name)
    args = CASES[name][1]

    read, expected = read_program(path), torch.export.load(path)

    torch.testing.assert_close(read.module()(*args), expected.module()(*args))
    assert [str(each) for each in read.range_constraints.items()] == [
        str(each) for each in expected.range_constraints.items()
    ]
    assert read.graph_module.code == expected.graph_module.code


@pytest.mark.parametrize(("name", "rows"), [("equal", (6, 5)), ("a relation", (3, 3)), ("a condition", (5,))])
def test_guards_of_a_program_still_hold(tmp_path: Path, name: str, rows: tuple[int, ...]) -> None:
    module = read_program(saved(tmp_path / "model.pt2", name)).module()

    with pytest.raises((AssertionError, RuntimeError), match="Guard failed"):
        module(*(torch.ones(count, 4) for count in rows))
