import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from shoal_runtime import ItemError, PaddingRule, TensorSpec
from shoal_runtime.errors import (
    DeviceLost,
    ForwardFailed,
    OutOfMemory,
    RaggedRows,
    TimedOut,
    WrongRows,
)
from shoal_runtime.execution.torch_placement import CpuPlacement
from tests.runtime.fakes import Adder, Bench, texts

X = np.array([[1, 2], [3, 4], [5, 6]], dtype=np.float32)
TEXT = (TensorSpec("t", "BYTES", [-1], content_type="text/plain"),)
NUMBER = (TensorSpec("n", "INT64", [-1]),)


class Length:
    """Text to its length, by way of preprocess and postprocess; some texts are bad."""

    inputs = TEXT
    outputs = NUMBER

    def preprocess(self, item: str) -> torch.Tensor:
        if item == "bad":
            raise ItemError("no bad texts", 422)
        if item == "unlucky":
            raise RuntimeError("oh")
        if item == "odd":
            return torch.zeros(2, dtype=torch.int64)
        return torch.tensor([int(item) if item.isdigit() else len(item)])

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch * 10

    def postprocess(self, row: Any) -> int:
        if row[0] == 70:
            raise ValueError("seventy")
        return int(row[0])


def test_tensors_go_through_forward() -> None:
    with Bench(Adder()) as bench:
        result = bench.run({"x": X})

    assert result.outputs["y"].tolist() == (X + 1).tolist()
    assert result.errors == []
    assert result.padded_rows == 0


def test_forward_runs_in_inference_mode_on_the_device_s_thread() -> None:
    seen: list[tuple[bool, str]] = []

    class Spy(Adder):
        def forward(self, batch: Mapping[str, Any]) -> Any:
            seen.append((torch.is_inference_mode_enabled(), threading.current_thread().name))
            return super().forward(batch)

    with Bench(Spy()) as bench:
        bench.run({"x": X})

    assert seen == [(True, "device")]


def test_batches_are_padded_to_an_allowed_size_and_cut_back() -> None:
    sizes: list[int] = []

    class Spy(Adder):
        def forward(self, batch: Mapping[str, Any]) -> Any:
            sizes.append(len(batch["x"]))
            return super().forward(batch)

    with Bench(Spy(), allowed_batch_sizes=(1, 4, 8)) as bench:
        result = bench.run({"x": X})

    assert sizes == [4]
    assert result.padded_rows == 1
    assert result.outputs["y"].tolist() == (X + 1).tolist()


def test_a_row_that_fails_leaves_the_others_alone() -> None:
    with Bench(Length()) as bench:
        result = bench.run({"t": texts(b"1", b"bad", b"2", b"unlucky", b"7", b"\xff", b"odd", b"4")})

    assert result.outputs["n"].tolist() == [10, 20, 40]
    expected = [
        (1, 422, "no bad"),
        (3, 500, "RuntimeError: oh"),
        (4, 500, "seventy"),
        (5, 400, "UTF-8"),
        (6, 400, "int64[2]"),
    ]
    assert [(e.row, e.status) for e in result.errors] == [(row, status) for row, status, _ in expected]
    assert all(part in e.message for e, (_, _, part) in zip(result.errors, expected, strict=True))


@pytest.mark.parametrize("error", [ValueError("v"), TypeError("t"), KeyError("k"), OSError("o")])
def test_what_decoders_raise_is_the_client_s_fault(error: Exception) -> None:
    class Decoder(Length):
        def preprocess(self, item: str) -> torch.Tensor:
            raise error

    with Bench(Decoder()) as bench:
        result = bench.run({"t": texts(b"1")})

    assert [e.status for e in result.errors] == [400]
    assert result.outputs == {}


def test_an_item_error_of_another_kind_keeps_its_status() -> None:
    class TooDark(ItemError, ValueError):
        pass

    class Camera(Length):
        def preprocess(self, item: str) -> torch.Tensor:
            raise TooDark("too dark", 422)

    with Bench(Camera()) as bench:
        result = bench.run({"t": texts(b"1")})

    assert [(e.status, e.message) for e in result.errors] == [(422, "too dark")]


def test_a_handler_that_calls_exit_ends_nothing() -> None:
    class Quitter(Length):
        def preprocess(self, item: str) -> torch.Tensor:
            if item == "quit":
                raise SystemExit(1)
            return super().preprocess(item)

    with Bench(Quitter()) as bench:
        result = bench.run({"t": texts(b"1", b"quit")})
    assert [(e.row, e.status) for e in result.errors] == [(1, 500)]

    with Bench(result_of(SystemExit(1))) as bench, pytest.raises(ForwardFailed, match="SystemExit"):
        bench.run({"x": X})


def test_a_batch_of_bad_rows_never_reaches_the_device() -> None:
    class Unreachable(Length):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            raise AssertionError

    with Bench(Unreachable()) as bench:
        result = bench.run({"t": texts(b"bad", b"bad")})

    assert result.outputs == {}
    assert [e.row for e in result.errors] == [0, 1]


def test_padding_and_failed_rows_go_together() -> None:
    with Bench(Length(), allowed_batch_sizes=(1, 4, 8)) as bench:
        result = bench.run({"t": texts(b"1", b"bad", b"2", b"3")})

    assert result.outputs["n"].tolist() == [10, 20, 30]
    assert result.padded_rows == 1


def test_ragged_rows_are_padded_with_a_mask() -> None:
    class Ids(Length):
        preprocess_padding = (PaddingRule("ids", pad_axis=1, pad_mask="mask"),)

        def preprocess(self, item: str) -> Any:
            return {"ids": torch.ones(len(item), dtype=torch.int64)}

        def forward(self, batch: Any) -> Any:
            assert batch["ids"].shape == batch["mask"].shape == (3, 3)
            return batch["mask"].sum(1, keepdim=True)

    with Bench(Ids()) as bench:
        result = bench.run({"t": texts(b"a", b"abc", b"ab")})

    assert result.outputs["n"].tolist() == [1, 3, 2]


def test_forward_may_return_a_result_or_an_error_for_each_row() -> None:
    class Lister:
        inputs = TEXT
        outputs = NUMBER

        def forward(self, batch: list[str]) -> list[Any]:
            assert batch == ["a", "b", "c", "d"]
            return [torch.tensor(1), ItemError("not b", 409), 3, RuntimeError("d")]

    with Bench(Lister()) as bench:
        result = bench.run({"t": texts(b"a", b"b", b"c", b"d")})

    assert result.outputs["n"].tolist() == [1, 3]
    assert [(e.row, e.status) for e in result.errors] == [(1, 409), (3, 500)]


def test_the_batch_dimension_may_be_another_one() -> None:
    class Columns:
        inputs = (TensorSpec("x", "FP32", [2, -1], batch_dim=1),)
        outputs = (TensorSpec("y", "FP32", [1, -1], batch_dim=1),)

        def forward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
            assert batch["x"].shape == (2, 4)
            return batch["x"].sum(0, keepdim=True)

    with Bench(Columns(), allowed_batch_sizes=(4, 8)) as bench:
        result = bench.run({"x": X.T})

    assert result.outputs["y"].tolist() == [[3, 7, 11]]


def test_outputs_are_cast_to_their_datatypes() -> None:
    class Halves:
        inputs = (TensorSpec("x", "FP32", [-1, 2]),)
        outputs = (TensorSpec("y", "FP32", [-1, 2]), TensorSpec("z", "BF16", [-1, 2]))

        def forward(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {"y": batch["x"].bfloat16(), "z": batch["x"], "more": batch["x"]}

    with Bench(Halves()) as bench:
        outputs = bench.run({"x": X}).outputs

    assert outputs["y"].dtype == np.float32
    assert outputs["z"].dtype == np.uint16


def result_of(value: Any) -> Any:
    class Fixed(Adder):
        def forward(self, batch: Mapping[str, Any]) -> Any:
            if isinstance(value, BaseException):
                raise value
            return value

    return Fixed()


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        pytest.param(torch.ones(2, 2), WrongRows, "2 rows of y for a batch of 3", id="fewer rows"),
        pytest.param(torch.ones(4, 2), WrongRows, "4 rows of y for a batch of 3", id="more rows"),
        pytest.param([1, 2], WrongRows, "2 rows of results for a batch of 3", id="short list"),
        pytest.param(torch.ones(3), ForwardFailed, "has shape", id="rank"),
        pytest.param(torch.ones(3, 5), ForwardFailed, r"\[3, 5\]; the signature", id="shape"),
        pytest.param(None, ForwardFailed, "returned NoneType for output y", id="nothing"),
        pytest.param({}, ForwardFailed, "returned nothing for output y", id="no output"),
        pytest.param({"y": 5}, ForwardFailed, "returned int for output y", id="number"),
        pytest.param(RuntimeError("oh"), ForwardFailed, "forward raised RuntimeError: oh", id="raise"),
        pytest.param(MemoryError(), OutOfMemory, "ran out of memory", id="memory"),
        pytest.param(torch.OutOfMemoryError("CUDA"), OutOfMemory, "ran out", id="device memory"),
    ],
)
def test_a_forward_that_violates_its_signature_fails_the_batch(
    value: Any, error: type[Exception], message: str
) -> None:
    with Bench(result_of(value)) as bench, pytest.raises(error, match=message):
        bench.run({"x": X})


def test_numbers_never_lose_their_fractions_silently() -> None:
    class Rounded(Adder):
        outputs = (TensorSpec("y", "INT64", [-1, 2]),)

    with (
        Bench(Rounded()) as bench,
        pytest.raises(ForwardFailed, match=r"torch\.float32; the signature"),
    ):
        bench.run({"x": X})


def test_a_wrong_row_count_before_postprocess_is_noticed() -> None:
    class Short(Length):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return batch[:1]

    with Bench(Short()) as bench, pytest.raises(WrongRows):
        bench.run({"t": texts(b"1", b"2")})


def test_a_batch_works_after_one_that_failed() -> None:
    class Once(Adder):
        failed = False

        def forward(self, batch: Mapping[str, Any]) -> Any:
            if not self.failed:
                self.failed = True
                raise MemoryError
            return super().forward(batch)

    with Bench(Once()) as bench:
        with pytest.raises(OutOfMemory):
            bench.run({"x": X})

        assert bench.run({"x": X}).outputs["y"].tolist() == (X + 1).tolist()


def test_a_batch_without_a_waiting_client_is_not_executed() -> None:
    with Bench(result_of(AssertionError())) as bench, pytest.raises(TimedOut):
        bench.run({"x": X}, deadline_s=0.0)


def test_an_error_that_costs_the_device_is_reported_as_such() -> None:
    class Fragile(CpuPlacement):
        def is_lost(self, error: BaseException) -> bool:
            return "illegal memory access" in str(error)

    broken = RuntimeError("CUDA error: an illegal memory access was encountered")
    with Bench(result_of(broken), placement=Fragile()) as bench:
        with pytest.raises(DeviceLost, match="illegal memory access"):
            bench.run({"x": X})

        assert bench.lost == [f"the device failed: RuntimeError: {broken}"]


def test_preprocess_of_the_next_batch_overlaps_forward() -> None:
    next_prepared, forward_runs = threading.Event(), threading.Event()

    class Slow(Length):
        def preprocess(self, item: str) -> torch.Tensor:
            if item == "2":
                assert forward_runs.wait(20)
                next_prepared.set()
            return torch.tensor([int(item)])

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            if batch[0, 0] == 1:
                forward_runs.set()
                # Without overlap this would wait in vain.
                assert next_prepared.wait(20)
            return batch

    async def run(bench: Bench) -> list[Any]:
        batches = [{"t": texts(b"1")}, {"t": texts(b"2")}]
        return await asyncio.gather(*(bench.pipeline.run(batch, 1) for batch in batches))

    with Bench(Slow()) as bench:
        first, second = asyncio.run(run(bench))

    assert first.outputs["n"].tolist() == [1]
    assert second.outputs["n"].tolist() == [2]


def test_tensors_are_staged_in_a_thread_where_that_is_worth_it() -> None:
    threads: list[str] = []

    class Staging(CpuPlacement):
        stages_off_loop = True

        def stage(self, batch: Any) -> Any:
            threads.append(threading.current_thread().name)
            return batch

    with Bench(Adder(), placement=Staging()) as bench:
        bench.run({"x": X})

    assert threads[0].startswith("ThreadPoolExecutor")


def test_lists_of_rows_are_staged_as_tensors_are() -> None:
    class Wrapping(CpuPlacement):
        stages_off_loop = True

        def stage(self, batch: Any) -> Any:
            return ("staged", batch)

        def forward(self, function: Callable[[Any], Any], batch: Any) -> Any:
            staged, rows = batch
            assert staged == "staged"
            return function(rows)

    class Sizes:
        inputs = (TensorSpec("t", "BYTES", [-1]),)
        outputs = (TensorSpec("n", "INT64", [-1]),)

        def forward(self, batch: list[bytes]) -> torch.Tensor:
            return torch.tensor([len(each) for each in batch])

    with Bench(Sizes(), placement=Wrapping()) as bench:
        assert bench.run({"t": texts(b"a", b"abc")}).outputs["n"].tolist() == [1, 3]


class Mixed:
    """Takes a text beside a number, without a preprocess."""

    inputs = (
        TensorSpec("t", "BYTES", [-1], content_type="application/json"),
        TensorSpec("x", "FP32", [2, -1], batch_dim=1),
    )
    outputs = (TensorSpec("y", "FP32", [-1]),)

    def forward(self, batch: Mapping[str, Any]) -> Any:
        assert len(batch["t"]) == batch["x"].shape[1]
        return batch["x"].sum(0) + torch.tensor(batch["t"])


def test_an_element_that_cannot_be_read_beside_tensors_fails_its_row_alone() -> None:
    with Bench(Mixed()) as bench:
        some = bench.run({"t": texts(b"10", b"{", b"30", b"\xff"), "x": np.arange(8, dtype=np.float32).reshape(2, 4)})
        none = bench.run({"t": texts(b"{"), "x": np.zeros((2, 1), np.float32)})

    assert some.outputs["y"].tolist() == [14, 38]
    assert [(e.row, e.status) for e in some.errors] == [(1, 400), (3, 400)]
    assert none.outputs == {}
    assert [e.message[:13] for e in none.errors] == ["t is not JSON"]


@pytest.mark.parametrize(
    ("odd", "status", "message"),
    [
        ("long", 400, "row length 9"),
        ("huge", 400, "Overflow"),
        ("words", 500, "preprocess returned no tensor: TypeError"),
        ("keys", 400, "preprocess gave"),
    ],
)
def test_a_row_that_makes_no_batch_fails_alone(odd: str, status: int, message: str) -> None:
    class Odd(Length):
        preprocess_padding = (PaddingRule("ids", pad_axis=1, pad_buckets=[4], pad_mask="mask"),)

        def preprocess(self, item: str) -> Any:
            words = np.array(["a"]) if item == "words" else np.zeros(9 if item == "long" else 1, np.int64)
            row = {"ids": words, "n": 2**70 if item == "huge" else 1}
            return {**row, 5: 1} if item == "keys" else row

        def forward(self, batch: Any) -> Any:
            return batch["n"].reshape(-1, 1)

    with Bench(Odd()) as bench:
        result = bench.run({"t": texts(b"1", b"2", odd.encode(), b"4")})
        alone = bench.run({"t": texts(odd.encode())})

    assert result.outputs["n"].tolist() == [1, 1, 1]
    assert [(e.row, e.status) for e in result.errors] == [(2, status if odd != "words" else 400)]
    if odd != "keys":
        assert [(e.row, e.status) for e in alone.errors] == [(0, status)]
        assert alone.errors[0].message.startswith(message)


class Tagger:
    """Gives each position of a row a tag, for just the positions that are real or for some more."""

    inputs = (
        TensorSpec("ids", "INT64", [-1, -1], pad_axis=1, pad_mask="mask"),
        TensorSpec("mask", "INT64", [-1, -1], optional=True),
    )
    outputs = (
        TensorSpec("tags", "BYTES", [-1, -1], unpad_axis=1, unpad_input="ids"),
        TensorSpec("scores", "FP32", [2, -1, -1], batch_dim=1, unpad_axis=2, unpad_input="ids"),
    )

    def __init__(self, more: int) -> None:
        self.more = more

    def forward(self, batch: Mapping[str, Any]) -> list[Any]:
        assert "mask" in batch
        lengths = [int(row.sum()) + self.more for row in batch["mask"]]
        if batch["ids"][0, 0] == 9:
            return [ItemError("nine")] + [self.row(length) for length in lengths[1:]]
        return [self.row(length) for length in lengths]

    def row(self, length: int) -> Any:
        return {"tags": ["t"] * length, "scores": torch.ones(2, length)}


IDS = np.array([[1, 0, 0], [1, 2, 3], [1, 2, 0]])
MASK = np.array([[1, 0, 0], [1, 1, 1], [1, 1, 0]])


def test_rows_that_are_cut_back_to_their_own_lengths_may_be_of_different_ones() -> None:
    with Bench(Tagger(0)) as bench:
        outputs = bench.run({"ids": IDS, "mask": MASK}).outputs
        without_first = bench.run({"ids": IDS * 9, "mask": MASK})

    assert outputs["tags"].tolist() == [[b"t", b"", b""], [b"t", b"t", b"t"], [b"t", b"t", b""]]
    assert outputs["scores"].tolist() == [MASK.tolist(), MASK.tolist()]
    assert without_first.outputs["tags"].tolist() == [[b"t", b"t", b"t"], [b"t", b"t", b""]]
    assert [e.row for e in without_first.errors] == [0]


def test_a_row_that_is_shorter_than_what_is_left_of_it_is_never_filled_up() -> None:
    with Bench(Tagger(-1)) as bench, pytest.raises(RaggedRows, match="rows of output tags"):
        bench.run({"ids": IDS, "mask": MASK})


def test_rows_of_different_shapes_without_a_cut_state_what_to_do() -> None:
    class Boxes(Length):
        outputs = (TensorSpec("n", "INT64", [-1, -1]),)

        def postprocess(self, row: Any) -> Any:
            return list(range(int(row[0]) // 10))

    with Bench(Boxes()) as bench:
        with pytest.raises(RaggedRows, match=r"\[\[1\], \[2\]\].*postprocess"):
            bench.run({"t": texts(b"1", b"2")})

        assert bench.run({"t": texts(b"2")}).outputs["n"].tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda x: x.to_sparse(), "output y is a sparse tensor"),
        (lambda x: torch.nested.nested_tensor(list(x), layout=torch.jagged), "output y is a nested tensor"),
        (lambda x: x.to("meta"), "output y is a meta tensor"),
        (lambda x: np.ma.masked_equal((x + 1).numpy(), 2.0), "masked"),
    ],
    ids=["sparse", "nested", "meta", "masked"],
)
def test_what_is_no_table_of_numbers_is_the_model_s_fault_in_words(result: Any, message: str) -> None:
    class Odd(Adder):
        def forward(self, batch: Mapping[str, Any]) -> Any:
            return result(batch["x"])

    with Bench(Odd()) as bench, pytest.raises(ForwardFailed, match=message):
        bench.run({"x": X})


def test_numbers_whose_sign_is_still_to_be_turned_are_turned() -> None:
    class Conjugate(Adder):
        def forward(self, batch: Mapping[str, Any]) -> Any:
            return torch.complex(batch["x"], batch["x"]).conj().imag

    with Bench(Conjugate()) as bench:
        assert bench.run({"x": X}).outputs["y"].tolist() == (-X).tolist()


def test_a_row_that_is_masked_fails_alone() -> None:
    class Masked(Adder):
        def postprocess(self, row: Any) -> Any:
            return {"y": np.ma.masked_equal(row["y"], 4.0)}

        def forward(self, batch: Mapping[str, Any]) -> Any:
            return {"y": batch["x"] + 1}

    with Bench(Masked()) as bench:
        result = bench.run({"x": X})

    assert [(error.row, error.status) for error in result.errors] == [(1, 500)]
    assert result.outputs["y"].tolist() == (X[[0, 2]] + 1).tolist()
