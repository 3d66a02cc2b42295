"""Whether an installation is compiled."""

import sys
from pathlib import Path

import pytest

from shoal.compilation import is_compiled


@pytest.mark.parametrize(("library", "compiled"), [("protocol.cpython-311-x86_64-linux-gnu.so", True), ("", False)])
def test_an_installation_is_compiled_if_its_proxy_has_a_library(
    library: str, compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "shoal_proxy"
    (package / "http").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "http" / "protocol.py").touch()
    if library:
        (package / "http" / library).touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    # An imported package would be found without a search.
    monkeypatch.delitem(sys.modules, "shoal_proxy", raising=False)

    assert is_compiled() is compiled


def test_without_a_proxy_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "shoal_proxy", raising=False)

    assert not is_compiled()
