"""Lengths of the product's files."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("client", "local", "operator", "proxy", "release", "runtime", "schema")
MOST = 400
LONGER = {
    "proxy/shoal_proxy/batching/scheduler.py",
    "proxy/shoal_proxy/dispatch/dispatcher.py",
    "proxy/shoal_proxy/http/protocol.py",
}
"""Files over the limit: the set may only shrink."""


def longer_than(most: int, names: list[str], root: Path = ROOT) -> set[str]:
    return {name for name in names if len((root / name).read_text().splitlines()) > most}


def test_no_file_exceeds_the_limit_except_those_that_did_before(tracked: list[str]) -> None:
    product = [name for name in tracked if name.endswith(".py") and name.partition("/")[0] in PRODUCT]

    assert longer_than(MOST, product) == LONGER


def test_a_longer_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("x = 1\n" * (MOST + 1))
    (tmp_path / "full.py").write_text("x = 1\n" * MOST)

    assert longer_than(MOST, ["long.py", "full.py"], tmp_path) == {"long.py"}
