from typing import Any

import pytest

from shoal.serving.inspection import amount, report_text, with_requests
from tests.client.fake_server import metadata, tensor

LOADED: dict[str, Any] = {
    "name": "adder",
    "format": "TorchExport",
    "device": "cpu",
    "files": {"count": 1, "bytes": 21_400_000},
    "parameters": {"count": 5_300_000, "bytes": 21_200_000},
    "memory_bytes": 312_000_000,
    "device_memory_bytes": None,
    "metadata": {
        **metadata([tensor("x", "FP32", [-1, 3])], [tensor("y", "FP32", [-1, 3])]),
        "platform": "pytorch_export",
    },
    "warnings": [],
    "refused": None,
    "seconds": 2.34,
}
REFUSED: dict[str, Any] = {
    **dict.fromkeys(LOADED),
    "files": {"count": 2, "bytes": 10},
    "warnings": [],
    "refused": "it is a pickle: set SHOAL_MODEL_ALLOW_PICKLE=true (model.allowPickle)",
    "seconds": 0.1,
}


def text_of(report: dict[str, Any]) -> str:
    return report_text(with_requests(report, ()), "model.pt2")


def test_a_person_reads_what_is_served_how_big_it_is_and_how_it_is_asked() -> None:
    text = text_of(LOADED)

    for line in (
        "input   x     FP32  [3]",
        "format   TorchExport (pytorch_export), on cpu",
        "files    1 file, 21.4 MB",
        "size     5.3 million parameters, 21.2 MB",
        "memory   312 MB at most, while loading and warming up",
        "start    2.3 s, including downloads",
        "sample requests, once `shoal serve model.pt2` is ready:",
    ):
        assert line in text.splitlines()
    assert "-d '{\"instances\":[[0.5,0.5,0.5]]}' http://127.0.0.1:8080/v1/models/adder:predict" in text


def test_a_chosen_precision_is_shown() -> None:
    chosen = {**LOADED["metadata"], "parameters": {**LOADED["metadata"]["parameters"], "precision": "BFloat16"}}

    assert "precision BFloat16" in text_of({**LOADED, "metadata": chosen})


def test_unknown_values_are_not_shown() -> None:
    assert "parameters" not in text_of({**LOADED, "parameters": None})


def test_gpu_memory_is_shown_beside_the_machines() -> None:
    assert "memory   312 MB, 1.5 GB on the GPU" in text_of({**LOADED, "device_memory_bytes": 1_500_000_000})


def test_warnings_come_last_and_name_the_field_behind_a_variable() -> None:
    text = text_of({**LOADED, "warnings": ["lower SHOAL_BATCHING_MAX_BATCH_SIZE"]})

    assert text.endswith("\nwarning: lower batching.maxBatchSize (SHOAL_BATCHING_MAX_BATCH_SIZE)")


def test_rejected_model_shows_only_what_was_found() -> None:
    assert text_of(REFUSED) == "files    2 files, 10 bytes"
    assert "first_requests" not in with_requests(REFUSED, ())
    assert with_requests(REFUSED, ())["refused"].endswith(
        "pass --set model.allowPickle=true (SHOAL_MODEL_ALLOW_PICKLE)"
    )


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (2_345_678, "2.35 MB"), (5e15, "5e+03 TB")]
)
def test_anamount_has_three_digits_and_a_unit(number: float, text: str) -> None:
    assert amount(number, ("bytes", "kB", "MB", "GB", "TB")) == text
