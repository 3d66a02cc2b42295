"""Several engines on one machine: each has a GPU or a part of the cores."""

from typing import Any

import pytest

from shoal_runtime.offline.settings import part_of_the_machine, seen_gpus


@pytest.mark.parametrize(
    ("environment", "number", "engines", "gpus", "given"),
    [
        ({}, 0, 1, ["0", "1"], {}),
        ({}, 0, 2, [], {"OMP_NUM_THREADS": "4"}),
        ({}, 3, 16, [], {"OMP_NUM_THREADS": "1"}),
        ({"OMP_NUM_THREADS": "3"}, 0, 2, [], {"OMP_NUM_THREADS": "3"}),
        ({}, 0, 3, ["0", "1"], {"CUDA_VISIBLE_DEVICES": "0"}),
        ({}, 1, 3, ["0", "1"], {"CUDA_VISIBLE_DEVICES": "1"}),
        ({}, 2, 3, ["0", "1"], {"CUDA_VISIBLE_DEVICES": "0"}),
    ],
)
def test_each_engine_gets_its_part_of_the_machine(
    environment: dict[str, str], number: int, engines: int, gpus: list[str], given: dict[str, Any]
) -> None:
    assert part_of_the_machine(environment, number, engines, gpus=gpus, cores=8) == given


def test_visible_gpus_are_the_named_or_the_present_ones() -> None:
    there = ["nvidiactl", "nvidia10", "nvidia2", "nvidia-uvm", "null", "nvidia0"]

    assert seen_gpus({}, there) == ["0", "2", "10"]
    assert seen_gpus({}, ["null"]) == []
    assert seen_gpus({"CUDA_VISIBLE_DEVICES": "3, GPU-ab"}, there) == ["3", "GPU-ab"]
    assert seen_gpus({"CUDA_VISIBLE_DEVICES": ""}, there) == []
