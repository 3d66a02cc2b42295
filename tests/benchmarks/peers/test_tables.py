from collections.abc import Iterator

import pytest

from benchmarks.peers.__main__ import parse, visits
from benchmarks.peers.measuring import closed_name, open_name
from benchmarks.peers.plots import draw
from benchmarks.peers.tables import TARGETS, Results, case_name, closed_table, open_table, results_file
from benchmarks.report import find


def closed(rate: float) -> dict[str, float]:
    return {"requests_per_s": rate, "p50_ms": 4.5, "p99_ms": 9.0, "cpu_us_per_request": 80.0}


@pytest.fixture
def results() -> Results:
    made = Results()
    for ours, theirs in ((4000.0, 3000.0), (2000.0, 1000.0), (4200.0, 4000.0)):
        made.add(case_name("wait", closed_name(64), "shoal"), closed(ours))
        made.add(case_name("wait", closed_name(64), "mosec"), closed(theirs))
    made.add(case_name("slow", open_name(1313), "shoal"), {"in_time_per_s": 850.0, "refusal_p99_ms": 3.0})
    made.add("slow, mosec", "it ended with status 1")
    return made


def test_the_ratio_is_that_of_runs_side_by_side(results: Results) -> None:
    # Of the medians it would be 4000 / 3000, though the middle pair, on a machine half as fast, says 2.
    assert find(results.rows(), "wait, 64 connections, shoal / mosec", "ratio") == pytest.approx(4 / 3)
    [row] = [row for row in results.rows() if row.case.endswith("shoal / mosec")]
    assert row.values["ratio"].max == 2


def test_a_server_without_figures_has_dashes(results: Results) -> None:
    lines = open_table(results.rows(), ["shoal", "mosec"])

    assert lines[2].startswith("| shoal | - | - | 850 | - |")
    assert lines[3].startswith("| mosec | - | - | - | - |")
    assert closed_table(results.rows(), ["shoal"])[2].startswith("| shoal | - | 4000 | - | 80 |")
    assert len({line.count("|") for line in lines}) == 1


def test_targets_name_cases_that_are_measured(results: Results) -> None:
    targets = {target.case: target.line(results.rows()) for target in TARGETS}

    assert targets["wait, 64 connections, shoal / mosec"].startswith("pass")
    assert targets["mlp, 64 connections, shoal / mosec"].endswith("(not measured)")
    cases = {
        case_name(m, n, p)
        for m in ("wait", "mlp")
        for n in map(closed_name, (1, 64, 256))
        for p in ("shoal", "shoal / mosec")
    }
    cases |= {case_name("slow", open_name(rate), "shoal") for rate in (440, 781, 1313, 1757)}
    assert set(targets) <= cases


def test_the_results_file_keeps_what_failed(results: Results) -> None:
    document = results_file(results, {"machine": "m"}, {"mosec": {"version": "1"}})

    assert document["problems"] == {"slow, mosec": "it ended with status 1"}
    assert document["machine"] == "m"
    assert document["cases"]["slow, 1313 offered/s, shoal"]["in_time_per_s"]["median"] == 850


def test_the_picture_is_the_same_for_the_same_figures(
    results: Results, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first, second = (tmp_path_factory.mktemp("picture") / "peers.svg" for _ in range(2))
    for path in (first, second):
        draw(results.rows(), ["shoal", "mosec"], "a machine", path)

    assert first.read_bytes() == second.read_bytes()
    assert b"answers within 100 ms" in first.read_bytes()


def test_the_two_rivals_take_turns_and_the_others_follow() -> None:
    planned: Iterator[tuple[str, str]] = visits(["shoal", "mosec", "ray"], ["wait", "slow"], 2)

    assert [f"{peer} {model}" for peer, model in planned] == [
        *("shoal wait", "mosec wait", "shoal wait", "mosec wait", "ray wait"),
        *("shoal slow", "mosec slow", "ray slow"),
    ]


def test_an_unknown_server_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--only", "shoal,tritn"])

    assert "'tritn' is none of shoal, mosec" in capsys.readouterr().err
    assert parse(["--only", "mosec,shoal"]).only == ["mosec", "shoal"]
