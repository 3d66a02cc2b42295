"""The soak's judgement, and a short one for real."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from benchmarks.soak import attacks
from benchmarks.soak.__main__ import main
from benchmarks.soak.fuzzing import fuzzed
from benchmarks.soak.neighbours import PROTOCOLS, Protocol, Tally, honest_row
from benchmarks.soak.properties import read_round
from benchmarks.soak.verdict import Figures, document, faults, figures, lines
from benchmarks.soak.watching import Watch

CALM_MB = 60.0
GOOD = figures(
    "silent",
    calm_per_s=100,
    tally=Tally(right=450, refused=3, latencies_s=[0.01] * 450),
    seen=Watch(proxy_bytes=70_000_000, runtime_bytes=300_000_000, descriptors=40, slowest_ready_s=0.02),
    after_bytes=65_000_000,
    counts={"hung up on": 9},
    duration_s=5,
)
REPORT = """<testsuites><testsuite time="12.5">
<testcase classname="tests.a" name="test_one"/>
<testcase classname="tests.a" name="test_two"><failure message="no"/></testcase>
</testsuite></testsuites>"""


def judged(row: Figures, *may_fail: str) -> list[str]:
    return faults(row, CALM_MB, frozenset(may_fail))


def test_refusals_are_no_harm() -> None:
    assert judged(GOOD) == []


def test_a_share_is_of_the_calm_rate() -> None:
    assert GOOD.share == pytest.approx(0.9)
    assert GOOD.p99_ms == pytest.approx(10)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"wrong": 1}, "1 wrong answers"),
        ({"failed": {"500": 2}}, "2 neighbours got 500"),
        ({"attacker": {"smuggled": 4}}, "4 requests were smuggled"),
        ({"right_per_s": 0.0}, "no neighbour was served"),
        ({"proxy_mb": 900.0}, "the proxy grew from 60 to 900 MB"),
        ({"unready": 3}, "/readyz said no 3 times"),
    ],
)
def test_each_harm_is_told(change: Mapping[str, object], said: str) -> None:
    assert judged(replace(GOOD, **change)) == [said]  # type: ignore[arg-type]


def test_what_a_dying_runtime_was_running_may_fail() -> None:
    row = replace(GOOD, failed={"503": 8}, unready=5)

    assert judged(row, "503") == []
    assert judged(replace(row, failed={"500": 1}), "503") == ["1 neighbours got 500"]


def test_the_table_has_a_line_for_each_attack() -> None:
    head, *rest = lines([GOOD, replace(GOOD, attack="fuzzing")])

    assert [line.split()[0] for line in rest] == ["silent", "fuzzing"]
    assert len(head) == len(rest[0])


def test_the_results_hold_figures_harm_and_properties() -> None:
    written = document([GOOD], {"silent": ["no"]}, [read_round(7, REPORT, "")])

    assert written["attacks"]["silent"]["share"] == pytest.approx(0.9)
    assert written["harm"] == {"silent": ["no"]}
    assert written["properties"][0]["seed"] == 7


def test_a_round_counts_examples_and_names_what_failed() -> None:
    done = read_round(3, REPORT, "  - 100 passing examples, 0 failing\n  - 60 passing examples, 1 failing\n")

    assert (done.properties, done.examples, done.seconds) == (2, 160, 12.5)
    assert done.failed == ["tests.a.test_two"]


def test_the_same_seed_makes_the_same_requests() -> None:
    assert [fuzzed(Random(5)) for _ in range(20)] == [fuzzed(Random(5)) for _ in range(20)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_carries_the_row(protocol: Protocol) -> None:
    request, _ = protocol
    row = honest_row(Random(1))

    assert all(str(value) in request(row)[2].decode() for value in row)


def test_an_attack_that_may_make_neighbours_fail_exists() -> None:
    assert set(attacks.LETS_FAIL) <= set(attacks.ATTACKS)


@pytest.mark.integration
def test_a_short_soak_does_no_harm(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--only", "fuzzing,smuggling"]) == 0
    assert "2 of 2 attacks did no harm." in capsys.readouterr().out
