import orjson
import pytest

from benchmarks.report import (
    Row,
    Spread,
    Target,
    document,
    make_row,
    mean_batch_rows,
    number,
    slug,
    table,
)

ROWS = [
    make_row("mlp", [{"p50_ms": 2.0, "requests_per_s": 16000}]),
    make_row("adder", [{"p50_ms": 5.0}, {"p50_ms": 4.0}, {"p50_ms": 9.0}]),
]


def test_repetitions_become_median_and_range() -> None:
    assert ROWS[1] == Row("adder", {"p50_ms": Spread(5.0, 4.0, 9.0)})


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        pytest.param(Target("mlp", "requests_per_s", 16000, at_least=True), "pass", id="on it"),
        pytest.param(Target("mlp", "requests_per_s", 16001, at_least=True), "MISS", id="below"),
        pytest.param(Target("adder", "p50_ms", 5.0, at_least=False), "pass", id="median on it"),
        pytest.param(Target("adder", "p50_ms", 4.9, at_least=False), "MISS", id="above"),
        pytest.param(Target("gone", "p50_ms", 5.0, at_least=False), "MISS", id="no such case"),
        pytest.param(Target("mlp", "p99_ms", 5.0, at_least=False), "MISS", id="no such quantity"),
    ],
)
def test_a_target_is_kept_or_missed(target: Target, verdict: str) -> None:
    assert target.line(ROWS).startswith(verdict)


def test_a_target_says_what_was_wanted_and_measured() -> None:
    line = Target("adder", "p50_ms", 4.9, at_least=False).line(ROWS)

    assert line == "MISS  adder: p50_ms <= 4.9 (measured 5)"


def test_the_table_names_each_case_once() -> None:
    lines = table(ROWS)

    assert [line.split() for line in lines] == [
        ["mlp", "p50_ms", "2", "[2", "..", "2]"],
        ["requests_per_s", "16000", "[16000", "..", "16000]"],
        ["adder", "p50_ms", "5", "[4", "..", "9]"],
    ]


def test_the_mean_batch_counts_only_what_came_between() -> None:
    before, after = {"count": 10.0, "sum": 10.0}, {"count": 14.0, "sum": 210.0}

    assert mean_batch_rows(before, after) == 50
    assert mean_batch_rows(after, after) == 0


@pytest.mark.parametrize(("value", "text"), [(0.01234, "0.0123"), (5.251, "5.25"), (99.96, "100"), (6153.8, "6154")])
def test_numbers_keep_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_machine_becomes_part_of_a_file_name() -> None:
    assert slug("AMD EPYC 7B13 @ 2.25GHz, 2 cores") == "amd-epyc-7b13-2-25ghz-2-cores"
    assert slug("../../etc") == "etc"


def test_the_document_is_json_with_its_surroundings() -> None:
    target = Target("mlp", "p50_ms", 3, at_least=False)

    result = orjson.loads(orjson.dumps(document(ROWS, [target], {"machine": "a"})))

    assert result["machine"] == "a"
    assert result["cases"]["adder"]["p50_ms"] == {"median": 5.0, "min": 4.0, "max": 9.0}
    assert result["targets"] == ["pass  mlp: p50_ms <= 3 (measured 2)"]
