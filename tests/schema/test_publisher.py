"""The publisher's choices in packages, chart, pages and hints."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from shoal_schema.publishing.publisher import HINTS, PAGES, Publisher, found, named, page, published_files
from shoal_schema.version import VERSION

ROOT = Path(__file__).parents[2]
NOT_PUBLISHED = Publisher("", "", "")
FISH = Publisher("fish", "registry.example.com/fish", "oci://registry.example.com/charts")


@pytest.mark.parametrize(
    ("text", "published"),
    [
        ('pip install ".[serve,onnx]"', 'pip install "fish[serve,onnx]"'),
        ("`pip install\n'.[jwt]'`", "`pip install\n'fish[jwt]'`"),
        ('pip install --quiet ".[serve]" torch', 'pip install --quiet "fish[serve]" torch'),
        ("`pip install . ./local`", "`pip install fish-local`"),
        ('pip install ".[serve-light,onnx]" ./local\n', 'pip install "fish[serve-light,onnx]" fish-local\n'),
        ("SHOAL_COMPILE=1 pip install --verbose .\n", "SHOAL_COMPILE=1 pip install --verbose --no-binary fish fish\n"),
        ("the extra `shoal[onnx]`", "the extra `fish[onnx]`"),
        (
            "helm install shoal charts/shoal --wait",
            f"helm install shoal oci://registry.example.com/charts/shoal --version {VERSION} --wait",
        ),
        ("kubectl apply --filename crds/", "kubectl apply --filename shoal/files/"),
    ],
)
def test_a_command_of_a_page_installs_from_a_clone_until_there_is_a_package(text: str, published: str) -> None:
    assert page(text, FISH, "shoal") == published
    assert page(published, NOT_PUBLISHED, "fish") == text


@pytest.mark.parametrize("text", ["pip install torch", "kubectl apply --filename crd.yaml", "make demo"])
def test_a_command_that_installs_something_else_stays(text: str) -> None:
    assert page(text, FISH, "shoal") == text


def published(files: Mapping[str, str], publisher: Publisher, root: Path) -> dict[str, str]:
    """Write files below a directory, and return them with the publisher's choices."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return {**files, **dict(published_files(root, publisher, {}))}


def test_with_a_name_nothing_installs_from_a_clone_and_without_it_all_is_as_before(tmp_path: Path) -> None:
    paths = {"charts/shoal/values.yaml", "schema/shoal_schema/guides.py", *found(ROOT, PAGES), *found(ROOT, HINTS)}
    before = {path: (ROOT / path).read_text() for path in paths}

    after = published(before, FISH, tmp_path)

    of_a_clone = re.compile(
        r"""pip install[^`\n]*[\s"'][.](?=[\s"'`\[]|/local|$)|[.]/local\b|helm \w+ shoal charts/|--filename crds/"""
    )
    # The code that writes both forms.
    del after["schema/shoal_schema/publishing/publisher.py"]
    assert [path for path, text in after.items() if of_a_clone.search(text)] == []
    assert [path for path, text in before.items() if of_a_clone.search(text)] != []
    assert [path for path, text in after.items() if re.search(r"[\"'`]shoal\[", text)] == []

    again = published(after, NOT_PUBLISHED, tmp_path)
    assert {path for path in again if again[path] != before[path]} == set()


def test_a_page_states_where_package_and_chart_are() -> None:
    text = "<!-- publisher: install -->\nold\n<!-- end -->\n\n<!-- publisher: chart -->\n<!-- end -->\n"

    assert "oci://registry.example.com/charts/shoal" in page(text, FISH, "shoal")
    assert 'pip install "fish[serve]"' in page(text, FISH, "shoal")
    assert "from a clone" in page(text, NOT_PUBLISHED, "shoal")


def test_requirements_and_hints_have_the_name_of_the_distribution() -> None:
    text = 'name = "shoal"\nruntime = ["shoal[runtime-light]", "torch"]\nshoal = "shoal.__main__:main"\n'

    assert named(text, FISH, "shoal") == (
        'name = "fish"\nruntime = ["fish[runtime-light]", "torch"]\nshoal = "shoal.__main__:main"\n'
    )


def test_a_choice_reaches_the_package_the_chart_the_readme_and_the_hints() -> None:
    files = dict(published_files(ROOT, FISH, {}))

    assert {"pyproject.toml", "local/pyproject.toml", "charts/shoal/values.yaml", "README.md"} <= set(files)
    assert 'registry: "registry.example.com/fish"' in files["charts/shoal/values.yaml"]
    assert '"fish-local"' in files["client/shoal/command_line.py"]
    assert '"fish[operator,serve-light]==' in files["local/pyproject.toml"]
