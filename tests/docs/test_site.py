"""The documentation site, as `make site` builds it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.surroundings import ROOT

LOADED = re.compile(r"""<(?:script|img|iframe)\b[^>]*\bsrc=["']?(https?:)?//|<link\b[^>]*\bhref=["']?(https?:)?//""")
"""A resource that a browser fetches from another host on its own; links that a reader follows are not meant."""


STARTS = ("how-to/", "reference/fields/", "decisions/")


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


def test_pages_of_tasks_come_before_decisions_in_the_search(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    least = {start: min(e.get("boost", 1) for e in entries if e["location"].startswith(start)) for start in STARTS}
    most = {start: max(e.get("boost", 1) for e in entries if e["location"].startswith(start)) for start in STARTS}

    assert least["how-to/"] > most["reference/fields/"] > most["decisions/"]


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("port", "reference/cli/"),
        ("server timing", "reference/protocols/"),
        ("request late", "how-to/find-a-bottleneck/"),
        ("batch delay", "how-to/make-a-service-faster/"),
        ("canary", "how-to/roll-out-a-new-version/"),
        ("traffic split", "how-to/roll-out-a-new-version/"),
        ("overwritten model", "how-to/roll-out-a-new-version/"),
    ],
)
def test_a_section_has_the_words_that_a_reader_searches_for(site: Path, words: str, page: str) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    titles = [re.sub(r"\W+", " ", e["title"].lower()) for e in entries if e["location"].startswith(f"{page}#")]
    assert any(all(word in title for word in words.split()) for title in titles), titles


def test_links_to_files_outside_the_docs_become_their_paths(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert "examples/keras</a>" not in page.read_text()
    assert any("<code>examples/keras</code>" in page.read_text() for page in site.rglob("*.html"))
