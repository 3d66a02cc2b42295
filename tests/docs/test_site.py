"""The documentation site, as `make site` builds it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.surroundings import ROOT

LOADED = re.compile(r"""<(?:script|img|iframe)\b[^>]*\bsrc=["']?(https?:)?//|<link\b[^>]*\bhref=["']?(https?:)?//""")
"""A resource that a browser fetches from another host on its own; links that a reader follows are not meant."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return built


def test_pages_load_nothing_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    assert [page.name for page in pages if LOADED.search(page.read_text())] == []
    assert [sheet.name for sheet in site.rglob("*.css") if "url(http" in sheet.read_text()] == []


def test_links_to_files_outside_the_docs_become_their_paths(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert "examples/keras</a>" not in page.read_text()
    assert any("<code>examples/keras</code>" in page.read_text() for page in site.rglob("*.html"))
