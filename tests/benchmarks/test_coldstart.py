import os
from pathlib import Path

import pytest

import benchmarks.coldstart
from benchmarks.coldstart import STEPS, Timeline, main, summary, table


def timeline(factor: float) -> Timeline:
    """Return a start whose steps each take one second of processor time, and two by the clock, times a factor."""
    made, used_s = Timeline(begun_s=0.0), {step.who: 0.0 for step in STEPS}
    for number, step in enumerate(STEPS, 1):
        used_s[step.who] += factor
        made.cpu_s[step.name], made.at_s[step.name] = used_s[step.who], 2 * factor * number
    return made


def test_a_step_costs_what_its_own_process_used_since_that_ones_last_step() -> None:
    rows = summary([timeline(1.0), timeline(9.0), timeline(2.0)])

    assert {row["cpu_s"] for row in rows.values()} == {2.0}
    assert [row["at_s"] for row in rows.values()] == [4.0 * number for number in range(1, len(STEPS) + 1)]


def test_a_step_is_over_when_it_was_seen_first() -> None:
    started = Timeline()
    started.mark("ready", os.getpid())
    seen_s = started.at_s["ready"]
    started.mark("ready", os.getpid())

    assert started.at_s == {"ready": seen_s}


def test_the_table_has_a_row_for_each_step_and_a_column_for_each_model() -> None:
    lines = table({"adder": summary([timeline(1.0)]), "cat": summary([timeline(2.0)])}).splitlines()

    assert len(lines) == 2 + len(STEPS)
    assert lines[-1] == "| first answer | 1.00, 14.0 s | 2.00, 28.0 s |"


def test_an_unknown_model_is_named_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--only", "adder,nope"])

    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "nope" in said
    assert "adder" in said


@pytest.mark.integration
def test_a_model_that_does_not_start_is_reported_with_its_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(benchmarks.coldstart, "model_of", lambda name, folder: tmp_path / "none")

    assert main(["--only", "adder", "--times", "1"]) == 1

    said = capsys.readouterr().err
    assert "status 3" in said
    assert "does not exist" in said
    assert "--only" in said
