import orjson
import pytest

from benchmarks.serve import TARGETS, batch_sums, json_bodies, plural, quantities, tensor_body
from benchmarks.wrk import Measurement

METRICS = """\
# TYPE shoal_proxy_batch_rows histogram
shoal_proxy_batch_rows_bucket{le="+Inf"} 4.0
shoal_proxy_batch_rows_count 4.0
shoal_proxy_batch_rows_sum 50.0
# TYPE shoal_proxy_queue_seconds histogram
shoal_proxy_queue_seconds_bucket{le="+Inf"} 9.0
shoal_proxy_queue_seconds_count 9.0
shoal_proxy_queue_seconds_sum 9.0
"""


def test_batches_and_rows_are_read_from_the_right_histogram() -> None:
    assert batch_sums(METRICS) == {"count": 4.0, "sum": 50.0}
    assert batch_sums("") == {"count": 0.0, "sum": 0.0}


def test_processor_time_is_told_per_request() -> None:
    measured = Measurement(requests=1000, requests_per_s=500, p50_ms=1, p99_ms=2)

    assert quantities(measured, used_cpu_s=0.05)["cpu_us_per_request"] == pytest.approx(50)


def test_each_json_body_is_one_row_of_sixteen_numbers_of_its_own() -> None:
    tensors = [orjson.loads(body)["inputs"][0] for body in json_bodies()]

    assert {(*tensor["shape"], len(tensor["data"])) for tensor in tensors} == {(1, 16, 16)}
    assert len({tuple(tensor["data"]) for tensor in tensors}) == len(tensors)


def test_the_tensor_body_is_a_header_and_as_many_bytes_as_it_says() -> None:
    body, header_bytes = tensor_body()

    [tensor] = orjson.loads(body[:header_bytes])["inputs"]
    assert tensor["parameters"]["binary_data_size"] == len(body) - header_bytes == 602_112


def test_targets_name_cases_as_they_are_measured() -> None:
    cases = {target.case for target in TARGETS}

    assert {f"adder, {plural(n)}" for n in (1, 64, 256)} <= cases
