from typing import Any

from shoal.serving.precision_table import precision_text, with_names

OUTPUT: dict[str, Any] = {
    "output": "y",
    "max_abs_error": 0.00306,
    "mean_abs_error": 0.0007,
    "max_rel_error": None,
    "agreement": 0.984375,
    "non_finite": 2,
    "changed_shape": "",
}
MEASURED: dict[str, Any] = {
    "precision": "BFloat16",
    "failure": None,
    "rows_per_s": 176_717.4,
    "batch_ms": 0.181,
    "speed": 2.621,
    "weights_bytes": 2_140_000,
    "device_bytes": None,
    "outputs": [OUTPUT, {**OUTPUT, "output": "z", "changed_shape": "[1] instead of [2]"}],
}
REPORT: dict[str, Any] = {
    "name": "m",
    "device": "cpu",
    "reference": "Float32",
    "rows": {"source": "generated", "batch_size": 32, "batches": 2, "count": 64},
    "precisions": [MEASURED, {**MEASURED, "precision": "Int8", "failure": "leave SHOAL_RUNTIME_DTYPE at auto"}],
    "chosen": {"precision": "BFloat16", "speed": 2.6, "rejected": {"Int8": "slow"}},
    "warnings": ["odd"],
    "refused": None,
}


def test_speed_error_and_what_was_not_measured_are_shown() -> None:
    lines = precision_text(with_names(REPORT)).splitlines()

    assert lines[0] == "m: 64 generated rows, in 2 batches of 32, on cpu"
    assert "BFloat16   176,717  0.181         2.62   2.14 MB  -" in lines
    assert "y       BFloat16   0.0031                    0.0007      -         98.44 % of rows  2" in lines
    assert any("[1] instead of [2]" in line for line in lines)
    assert any(line.startswith("no Int8: ") and "runtime.dtype" in line for line in lines)
    assert "runtime.precision would choose BFloat16" in lines
    assert "warning: odd" in lines


def test_a_model_that_keeps_its_dtype_is_compared_with_that() -> None:
    own = [{**MEASURED, "precision": "Float32"}]

    text = precision_text({**REPORT, "precisions": own, "chosen": None, "reference": "the dtype of the file"})

    assert "compared with the dtype of the file" in text
    assert "Float32" not in text


def test_rows_of_a_file_that_fill_no_batch_are_counted_without_their_repetition() -> None:
    rows = {"source": "rows.parquet", "batch_size": 32, "batches": 2, "count": 50}

    first = precision_text({**REPORT, "rows": rows}).splitlines()[0]

    assert first.startswith("m: the first 50 rows of rows.parquet, in 2 batches of 32 (14 rows are repeated")


def test_the_meaning_of_agreement_is_stated_for_each_kind_of_output() -> None:
    labels = {**OUTPUT, "output": "label", "max_abs_error": None, "mean_abs_error": None, "agreement": 0.5}
    measured = [{**MEASURED, "outputs": [OUTPUT, labels]}]

    lines = precision_text({**REPORT, "precisions": measured, "chosen": None}).splitlines()

    assert any(line.startswith("label ") and "50 % of elements" in line for line in lines)
    assert [line.partition(":")[0] for line in lines if line.startswith("agreement")] == [
        "agreement of rows", "agreement of elements",
    ]  # fmt: skip
