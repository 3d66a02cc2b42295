from typing import Any

import torch

from shoal_runtime.execution.staging import StagingPool


class Host:
    def __init__(self) -> None:
        self.allocated: list[int] = []

    def __call__(self, size: int) -> torch.Tensor:
        self.allocated.append(size)
        return torch.zeros(size, dtype=torch.uint8)


class Ended:
    waited = False

    def record(self, stream: Any) -> None: ...

    def elapsed_time(self, end: Any) -> float:
        return 0.0

    def synchronize(self) -> None:
        self.waited = True


def test_staging_memory_has_the_tensor_s_form() -> None:
    pool = StagingPool(Host())

    for like in (torch.ones(3, 5), torch.ones(2, dtype=torch.int64), torch.ones(0, 4)):
        copy = pool.acquire(like)
        copy.view.copy_(like)
        assert torch.equal(copy.view, like)
        pool.release(copy)


def test_staging_memory_is_reused_for_sizes_alike() -> None:
    host = Host()
    pool = StagingPool(host)

    for rows in (30, 32, 31):
        pool.release(pool.acquire(torch.ones(rows, 16)))

    assert host.allocated == [2048]


def test_a_buffer_in_use_is_not_handed_out_again() -> None:
    host = Host()
    pool = StagingPool(host)

    first, second = pool.acquire(torch.ones(4)), pool.acquire(torch.ones(4))

    assert first.view.data_ptr() != second.view.data_ptr()
    assert host.allocated == [16, 16]


def test_a_buffer_waits_for_the_copy_that_used_it() -> None:
    pool, end = StagingPool(Host()), Ended()
    pool.release(pool.acquire(torch.ones(4)), end)
    assert not end.waited

    pool.acquire(torch.ones(4))

    assert end.waited
