"""The container's CPU limit, read from the kernel's files."""

from pathlib import Path

import pytest

from shoal_runtime.execution.threads import core_limit, default_threads


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        pytest.param("200000 100000\n", 2, id="two cores"),
        pytest.param("150000 100000\n", 2, id="one and a half"),
        pytest.param("10000 100000\n", 1, id="a tenth"),
        pytest.param("max 100000\n", None, id="no limit"),
    ],
)
def test_version_2_reports_quota_and_period_in_one_file(tmp_path: Path, text: str, limit: int | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert core_limit(tmp_path) == limit


@pytest.mark.parametrize(("quota_us", "limit"), [("300000", 3), ("50000", 1), ("-1", None)])
def test_version_1_reports_them_in_two_files(tmp_path: Path, quota_us: str, limit: int | None) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota_us}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert core_limit(tmp_path) == limit


def test_no_control_group_is_no_limit(tmp_path: Path) -> None:
    assert core_limit(tmp_path / "absent") is None


@pytest.mark.parametrize(("limit", "threads"), [(None, 32), (2, 2), (64, 32)])
def test_torch_gets_no_more_threads_than_the_container_may_use(limit: int | None, threads: int) -> None:
    assert default_threads(32, limit) == threads
