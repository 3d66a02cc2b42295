import re
from pathlib import Path

from benchmarks.gpu.needed import REQUIREMENTS, differing, missing, required

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


def test_names_are_read_without_versions_and_comments() -> None:
    assert required("# a\nhttpx>=0.28,<0.29\n\nuvloop>=0.21  # fast\nrich\n") == ["httpx", "uvloop", "rich"]


def test_a_package_that_is_not_installed_is_named() -> None:
    assert missing(["httpx", "no-such-package"]) == ["no-such-package"]


def test_requirements_are_those_of_shoal() -> None:
    """Each line is in pyproject.toml as it stands."""
    declared = set(re.findall(r'"([^"]+)"', PYPROJECT.read_text()))
    lines = [line for line in REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]

    assert [line for line in lines if line not in declared] == []


def test_a_changed_module_is_found(tmp_path: Path) -> None:
    for name, text in (("installed", "a = 1\n"), ("checkout", "a = 2\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "module.py").write_text(text)
        (tmp_path / name / "same.py").write_text("b = 1\n")

    assert differing(tmp_path / "installed", tmp_path / "checkout") == ["module.py"]
