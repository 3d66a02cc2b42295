import json
from pathlib import Path

import pytest

from benchmarks.gpu.pieces import PIECES
from benchmarks.gpu.plots import by_clients
from benchmarks.gpu.results import joint_table, mark, piece_document, read_pieces, report_lines, write_atomically
from benchmarks.gpu.sampling import medians
from benchmarks.report import Target, make_row

HERE = {"device": "cpu", "machine": "two cores", "proxy": "interpreted", "date": "2026-11-27"}
ROWS = [
    make_row("mlp, loop, eager", [{"rows_per_s": 5000.0, "batch_ms": 1.6}]),
    make_row("mlp, 8 clients", [{"rows_per_s": 4800.0, "share_of_loop": 0.96}]),
]
SHARE = Target("mlp, 8 clients", "share_of_loop", 0.95, at_least=True)
IDLE = Target("mlp, trace", "device_idle", 0.03, at_least=False)


def test_a_mark_is_met_missed_or_skipped_with_its_reason() -> None:
    assert mark(SHARE, ROWS, {}).startswith("pass")
    assert mark(IDLE, ROWS, {}).startswith("MISS")
    assert "no GPU" in mark(IDLE, ROWS, {"mlp, trace": "no GPU"})
    assert mark(IDLE, ROWS, {"mlp": "out of time"}).startswith("skip")


def test_a_cell_without_a_figure_is_a_dash() -> None:
    lines = [line.split("  ") for line in joint_table(ROWS)]

    assert [line[-1].strip() for line in lines] == ["ms/batch", "1.6", "-"]


def test_the_newest_file_of_each_piece_is_reported(tmp_path: Path) -> None:
    for date, rows in (("2026-11-27", ROWS), ("2026-11-26", ROWS[:1])):
        result = piece_document("mlp", rows, {"mlp, trace": "no GPU"}, (SHARE, IDLE), {**HERE, "date": date})
        write_atomically(tmp_path / f"gpu-mlp-cpu-{date}.json", result)

    [found] = read_pieces(tmp_path, PIECES)

    assert found["date"] == "2026-11-27"
    lines = report_lines([found])
    assert any(line.startswith("pass  mlp, 8 clients") for line in lines)
    assert any("skipped: no GPU" in line for line in lines)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "gpu-mlp.json"
    for value in (1, 2):
        write_atomically(path, {"value": value})

    assert json.loads(path.read_text()) == {"value": 2}
    assert list(path.parent.iterdir()) == [path]


def test_the_picture_has_a_line_for_each_model() -> None:
    rows = [*ROWS, make_row("mlp, 64 clients", [{"share_of_loop": 0.9}]), make_row("mlp, half load", [{"p99_ms": 1.0}])]

    assert by_clients(rows, "share_of_loop") == {"mlp": [(8, 0.96), (64, 0.9)]}


def test_values_that_a_gpu_does_not_report_are_left_out() -> None:
    output = "90, 300.5, 1000\n100, [N/A], 1000\n80, 299.5, 1000\ncut o"

    assert medians(output) == pytest.approx({"gpu_utilization": 0.9, "gpu_watts": 300, "gpu_mib": 1000})


@pytest.mark.parametrize("piece", PIECES)
def test_marks_name_cases_of_their_own_piece(piece: str) -> None:
    targets = PIECES[piece].targets(512)

    assert targets
    own = ("mlp", "minilm") if piece == "instances" else (piece,)
    assert {target.case.partition(",")[0] for target in targets} <= set(own)
