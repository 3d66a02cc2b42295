"""Whatever a model's code raises fails its row or its batch, and nothing else."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from shoal_runtime import ItemError, TensorSpec
from shoal_runtime.codecs.response import encode_error
from shoal_runtime.errors import FailedRow, ForwardFailed, LoadError, OutOfMemory
from shoal_runtime.faults import MAX_TEXT, EscapedException, call_contained, describe, message_text
from tests.runtime.fakes import Adder, Bench, texts

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

X = np.array([[1, 2]], dtype=np.float32)


class Bare(BaseException):
    """As a library may have its own."""


FAULTS = [
    SystemExit(1),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
    StopIteration(),
    StopAsyncIteration(),
    RecursionError("too deep"),
    Bare("bare"),
]
each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)


class Trapped:
    """Raises in a chosen stage, for the row "x" or for its batch."""

    inputs = (TensorSpec("t", "BYTES", [-1], content_type="text/plain"),)
    outputs = (TensorSpec("n", "INT64", [-1]),)

    def __init__(self, where: str, fault: BaseException) -> None:
        self.where = where
        self.fault = fault

    def trap(self, where: str, *, sprung: bool) -> None:
        if where == self.where and sprung:
            raise self.fault

    def preprocess(self, item: str) -> torch.Tensor:
        self.trap("preprocess", sprung=item == "x")
        return torch.tensor(-1 if item == "x" else int(item))

    def forward(self, batch: torch.Tensor) -> Any:
        self.trap("forward", sprung=bool((batch < 0).any()))
        return batch

    def postprocess(self, row: Any) -> Any:
        self.trap("postprocess", sprung=row < 0)
        return int(row)


@each_fault
@pytest.mark.parametrize("where", ["preprocess", "postprocess"])
def test_a_row_s_fault_is_its_own(where: str, fault: BaseException) -> None:
    with Bench(Trapped(where, fault)) as bench:
        result = bench.run({"t": texts(b"1", b"x", b"2")})

        assert [(e.row, e.status, e.message) for e in result.errors] == [(1, 500, describe(fault))]
        assert result.errors[0].cause is fault
        assert result.outputs["n"].tolist() == [1, 2]


@each_fault
def test_a_batch_s_fault_is_its_own_and_the_device_s_thread_lives_on(fault: BaseException) -> None:
    with Bench(Trapped("forward", fault)) as bench:
        with pytest.raises(ForwardFailed) as failed:
            bench.run({"t": texts(b"1", b"x")})

        assert str(failed.value) == f"forward raised {describe(fault)}"
        assert failed.value.__cause__ is fault
        assert bench.run({"t": texts(b"1")}).outputs["n"].tolist() == [1]
        assert bench.lost == []


@pytest.mark.parametrize("fault", [MemoryError(), KeyboardInterrupt()], ids=["memory", "interrupt"])
def test_a_result_that_raises_when_it_is_read_fails_its_row(fault: BaseException) -> None:
    class Mine:
        def __array__(self, *_: object, **__: object) -> Any:
            raise fault

    class Looked(Trapped):
        def postprocess(self, row: Any) -> Any:
            return Mine() if row < 0 else int(row)

    with Bench(Looked("nowhere", fault)) as bench:
        result = bench.run({"t": texts(b"1", b"x")})

    assert [(e.row, e.status) for e in result.errors] == [(1, 500)]
    assert result.outputs["n"].tolist() == [1]


def test_an_interrupt_while_rows_are_stacked_reaches_no_event_loop() -> None:
    class Interrupting(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.stack:
                raise KeyboardInterrupt
            return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]

    class Stacked(Trapped):
        def preprocess(self, item: str) -> torch.Tensor:
            return torch.tensor(1).as_subclass(Interrupting)

    with Bench(Stacked("nowhere", ValueError())) as bench:
        result = bench.run({"t": texts(b"1", b"2")})

    assert [(e.row, e.status) for e in result.errors] == [(0, 500), (1, 500)]
    assert result.errors[0].message.endswith("returned no tensor: KeyboardInterrupt")


def test_memory_that_runs_out_in_forward_is_reported_as_such() -> None:
    with Bench(Trapped("forward", MemoryError())) as bench, pytest.raises(OutOfMemory):
        bench.run({"t": texts(b"x")})


class Mute(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class Unset(ItemError):
    def __init__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (Mute(), 500, "Mute: its message cannot be formatted: KeyboardInterrupt"),
        (RuntimeError("\ud800 and \N{GRINNING FACE}"), 500, "RuntimeError: \\ud800 and \N{GRINNING FACE}"),
        (ItemError("\udfff"), 400, "\\udfff"),
        (ItemError("x" * 10_000_000), 400, "x" * (MAX_TEXT - 4) + " ..."),
        (ItemError("odd", status="bad"), 500, "odd"),  # type: ignore[arg-type]
        (ItemError("odd", status=422.0), 500, "odd"),  # type: ignore[arg-type]
        (ItemError("odd", status=200), 500, "odd"),
        (Unset(), 500, ""),
        (ValueError(b"\xff"), 400, "ValueError: b'\\xff'"),
    ],
    ids=["raises", "surrogate", "lone", "long", "words", "fraction", "success", "unset", "bytes"],
)
def test_a_message_never_breaks_the_response_that_holds_it(error: Exception, status: int, message: str) -> None:
    with Bench(Trapped("preprocess", error)) as bench:
        result = bench.run({"t": texts(b"1", b"x")})

    assert [(e.status, e.message) for e in result.errors] == [(status, message)]
    assert result.outputs["n"].tolist() == [1]


@pytest.mark.parametrize("error", [Mute(), RuntimeError("\ud800"), RuntimeError("x" * 10_000_000)])
def test_a_batch_s_message_is_bounded_and_can_be_encoded(error: Exception) -> None:
    with Bench(Trapped("forward", error)) as bench, pytest.raises(ForwardFailed) as failed:
        bench.run({"t": texts(b"x")})

    assert len(encode_error(str(failed.value), "FORWARD_FAILED")) < 2 * MAX_TEXT


def test_text_that_is_fine_is_left_alone() -> None:
    assert message_text("né \N{GRINNING FACE}") == "né \N{GRINNING FACE}"
    assert FailedRow(0, 400, "a\nb").message == "a\nb"


def test_what_would_end_a_thread_is_reported_as_an_exception() -> None:
    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(EscapedException, match="SystemExit: 3") as escaped:
        call_contained(leave)
    assert describe(escaped.value) == "SystemExit: 3"


@pytest.mark.parametrize("fault", ["KeyboardInterrupt", "GeneratorExit", "SystemExit", "asyncio.CancelledError"])
@pytest.mark.parametrize("where", ["module", "load"])
def test_what_loading_raises_is_a_reason_not_to_start(
    where: str, fault: str, tmp_path: Path, load: Callable[..., "Model"]
) -> None:
    raising = f"import asyncio\n{'raise ' + fault if where == 'module' else ''}\n"
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "handler.py").write_text(
        f"{raising}class Odd:\n    def load(self, context):\n        raise {fault}\n    def forward(self, batch): ...\n"
    )

    with pytest.raises(LoadError, match=fault.rpartition(".")[2]):
        load(tmp_path / "m")


def test_an_exception_as_a_row_s_result_may_be_of_any_kind() -> None:
    class Lister(Adder):
        def forward(self, batch: Mapping[str, Any]) -> Any:
            return [KeyboardInterrupt()]

    with Bench(Lister()) as bench:
        assert [e.message for e in bench.run({"x": X}).errors] == ["KeyboardInterrupt"]
