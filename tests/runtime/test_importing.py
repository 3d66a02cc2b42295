import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal_runtime.errors import LoadError
from shoal_runtime.importing import HandlerFailed, import_handler
from shoal_runtime.packages import remedy

CLASS = """
class Cat:
    def forward(self, batch): return batch
"""


@pytest.fixture(autouse=True)
def clean_imports() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def write(directory: Path, name: str, text: str) -> None:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))


def test_a_class_is_found_in_a_file(tmp_path: Path) -> None:
    write(tmp_path, "code/cat.py", CLASS)

    assert import_handler("code/cat.py:Cat", tmp_path).__name__ == "Cat"


def test_a_class_is_found_in_a_module_beside_the_model(tmp_path: Path) -> None:
    write(tmp_path, "felines_of_test/__init__.py", "")
    write(tmp_path, "felines_of_test/cat.py", CLASS)

    assert import_handler("felines_of_test.cat:Cat", tmp_path).__name__ == "Cat"


@pytest.mark.parametrize(
    "statement",
    ["from neighbour_of_test import NAME", "from .neighbour_of_test import NAME", "from . import neighbour_of_test"],
)
@pytest.mark.parametrize("folder", ["", "code/"])
def test_a_handler_imports_what_lies_beside_it_in_any_way(tmp_path: Path, folder: str, statement: str) -> None:
    write(tmp_path, f"{folder}neighbour_of_test.py", "NAME = 'tom'")
    write(tmp_path, f"{folder}handler.py", f"{statement}\n{CLASS}")

    assert import_handler(f"{folder}handler.py", tmp_path).__name__ == "Cat"


def test_neighbours_import_one_another_and_packages_beside_them(tmp_path: Path) -> None:
    write(tmp_path, "animals_of_test/__init__.py", "")
    write(tmp_path, "animals_of_test/names.py", "from .more import NAME")
    write(tmp_path, "animals_of_test/more.py", "NAME = 'tom'")
    write(tmp_path, "neighbour_of_test.py", "from animals_of_test.names import NAME")
    write(tmp_path, "handler.py", f"from .neighbour_of_test import NAME\nfrom .animals_of_test import names\n{CLASS}")

    assert import_handler("handler.py", tmp_path)


def test_a_handlers_class_can_be_found_by_its_modules_name(tmp_path: Path) -> None:
    write(tmp_path, "handler.py", CLASS)

    made = import_handler("handler.py", tmp_path)

    assert getattr(sys.modules[made.__module__], made.__name__) is made


def test_the_only_class_with_a_forward_needs_no_name(tmp_path: Path) -> None:
    write(tmp_path, "handler.py", "from pathlib import Path\nclass Helper: pass\n" + CLASS)

    assert import_handler("handler.py", tmp_path).__name__ == "Cat"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "class A: pass", r"handler.py defines no class with a forward method.*Write one, or name", id="none"
        ),
        pytest.param(
            CLASS + CLASS.replace("Cat", "Dog"), r"several classes .*\(Cat, Dog\).*handler.py:CLASS", id="two"
        ),
    ],
)
def test_an_ambiguous_file_needs_a_name(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, "handler.py", text)

    with pytest.raises(LoadError, match=message):
        import_handler("handler.py", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("missing.py:Cat", "the handler file"),
        ("no_such_module_of_test.cat:Cat", "neither installed nor in"),
        ("handler.py:Dog", "has no class Dog"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, "handler.py", CLASS)

    with pytest.raises(LoadError, match=message):
        import_handler(text, tmp_path)


@pytest.mark.parametrize("text", ["1 / 0", "import no_such_module_of_test", "def broken(:", "raise SystemExit(0)"])
def test_a_handler_that_cannot_be_imported_keeps_its_cause(tmp_path: Path, text: str) -> None:
    write(tmp_path, "handler.py", text)

    with pytest.raises(HandlerFailed, match=r"importing handler\.py failed") as caught:
        import_handler("handler.py:Cat", tmp_path)

    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("imported", "remedy"),
    [
        ("no_such_module_of_test", "No module named 'no_such_module_of_test': pip install no_such_module_of_test$"),
        ("no_such_package.part", "No module named 'no_such_package': pip install no_such_package$"),
        # The package is here: installing it would change nothing.
        ("json.no_such_part", "No module named 'json.no_such_part'$"),
    ],
)
def test_a_package_that_a_handler_does_not_have_is_the_models_own_need(
    tmp_path: Path, imported: str, remedy: str
) -> None:
    write(tmp_path, "handler.py", f"import {imported}")

    with pytest.raises(HandlerFailed, match=remedy):
        import_handler("handler.py:Cat", tmp_path)


@pytest.mark.parametrize(("module", "package"), [("sklearn", "scikit-learn"), ("xgboost", "xgboost")])
def test_the_remedy_names_the_package_not_the_module(
    monkeypatch: pytest.MonkeyPatch, module: str, package: str
) -> None:
    monkeypatch.delitem(sys.modules, module, raising=False)
    error = ModuleNotFoundError(f"No module named '{module}.tree'", name=f"{module}.tree")
    assert remedy(error) == f": pip install {package}"
