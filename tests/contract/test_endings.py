"""Every program of Shoal is guarded from its first line on, and ends in one way."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPONENTS = (
    "client/shoal",
    "proxy/shoal_proxy",
    "runtime/shoal_runtime",
    "operator/shoal_operator",
    "local/shoal_local",
)
PROGRAMS = sorted(path for component in COMPONENTS for path in (ROOT / component).rglob("__main__.py"))
LIGHT = {"collections.abc", "os", "sys"}


def imported(program: Path) -> Iterator[str]:
    """Give what a module imports as it is imported itself."""
    for statement in ast.parse(program.read_text()).body:
        if isinstance(statement, ast.Import):
            yield from (each.name for each in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            yield str(statement.module)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.parent.name)
def test_a_program_imports_nothing_before_it_is_guarded(program: Path) -> None:
    assert set(imported(program)) <= LIGHT | {"shoal_schema.process.exit_status", "shoal_local.guarding"}
    assert "return run_command(run)" in program.read_text() or "guarded(" in program.read_text()


def test_the_guard_of_the_local_clusters_programs_imports_as_little() -> None:
    guard = ROOT / "local/shoal_local/guarding.py"
    assert set(imported(guard)) <= LIGHT | {"shoal_schema.process.exit_status"}
    assert "return run_command(run)" in guard.read_text()
