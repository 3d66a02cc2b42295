"""Modules compiled to C extensions: they exist, are listed once, and behave as in Python."""

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import shoal_runtime
from tests.project.scripts import ROOT, load


@pytest.fixture(scope="module")
def compiling() -> ModuleType:
    return load("compile")


def sources(compiling: ModuleType) -> dict[str, list[Path]]:
    """Return the sources of each library."""
    return {
        library: [path for pattern in patterns for path in ROOT.glob(pattern)]
        for library, patterns in compiling.COMPILED.items()
    }


def test_each_entry_names_modules_and_each_module_stands_once(compiling: ModuleType) -> None:
    for patterns in compiling.COMPILED.values():
        for pattern in patterns:
            assert list(ROOT.glob(pattern)), pattern
    every = [path for paths in sources(compiling).values() for path in paths]
    assert len(every) == len(set(every))


def test_a_library_holds_one_process_and_what_all_do_alike_with_bytes(compiling: ModuleType) -> None:
    for library, paths in sources(compiling).items():
        packages = {path.relative_to(ROOT).parts[1] for path in paths}
        assert packages - {"shoal_schema"} == {library}


def test_what_models_are_written_against_is_not_compiled(compiling: ModuleType) -> None:
    compiled = {path for paths in sources(compiling).values() for path in paths}
    public = {getattr(shoal_runtime, name).__module__ for name in shoal_runtime.__all__}
    assert {Path(str(sys.modules[name].__file__)) for name in public}.isdisjoint(compiled)


def test_the_tests_of_what_is_compiled_run_on_it(compiling: ModuleType) -> None:
    listed = (ROOT / "Makefile").read_text().partition("COMPILED_TESTS :=")[2].partition("\n\n")[0]
    for path in sources(compiling)["shoal_runtime"]:
        part = path.relative_to(ROOT / "runtime" / "shoal_runtime")
        own = f"runtime/{part.parts[0]}" if len(part.parts) > 1 else f"{part.stem}.py"
        assert own in listed, part


def waits(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """Yield the lines where a coroutine may give way to others."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith | ast.Yield | ast.YieldFrom):
            yield node.lineno
        yield from waits(ast.iter_child_nodes(node))


def test_nothing_is_awaited_while_an_exception_is_handled(compiling: ModuleType) -> None:
    for path in (path for paths in sources(compiling).values() for path in paths):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Try):
                handling = [*node.finalbody, *(part for handler in node.handlers for part in handler.body)]
                assert not list(waits(handling)), f"{path}: await it behind the handler"


def test_no_freed_frame_is_handed_out_before_it_is_empty(compiling: ModuleType, tmp_path: Path) -> None:
    text = "    if (run_env_free_instance == NULL) {\n    run_env_free_instance = self;\n    }\n"
    (tmp_path / "made.c").write_text(text)

    compiling.keep_nothing_freed(tmp_path)

    assert "if (0) {\n    run_env_free_instance" in (tmp_path / "made.c").read_text()
    with pytest.raises(ValueError, match="another way"):
        compiling.keep_nothing_freed(tmp_path)


def test_no_interpreted_class_inherits_from_a_compiled_one(compiling: ModuleType) -> None:
    """Mypyc rejects such a class when it is used, in compiled installs only."""
    compiled = {path for paths in sources(compiling).values() for path in paths}
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts[1:]): path for path in compiled}
    plain = [path for part in ("proxy", "runtime", "schema") for path in (ROOT / part).rglob("*.py")]
    for path in set(plain) - compiled:
        tree = ast.parse(path.read_text())
        native = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module in modules
            for alias in node.names
            if _is_native_class(modules[node.module], alias.name)
        }
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        broken = [
            each.name for each in classes for base in each.bases if isinstance(base, ast.Name) and base.id in native
        ]
        assert not broken, path


def _is_native_class(path: Path, name: str) -> bool:
    """Return whether a module has a class of this name that mypyc makes native: not of a metaclass."""
    found = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef) and node.name == name]
    foreign = {"Protocol", "Struct", "NamedTuple", "StrEnum", "IntEnum", "Enum", "TypedDict"}
    return any(not {base.id for base in each.bases if isinstance(base, ast.Name)} & foreign for each in found)
