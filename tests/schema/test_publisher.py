"""The publisher's choices in packages, chart, pages and hints."""

from pathlib import Path

import pytest

from shoal_schema.publishing.publisher import Publisher, named, page, published_files

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
    ],
)
def test_a_command_of_a_page_installs_from_a_clone_until_there_is_a_package(text: str, published: str) -> None:
    assert page(text, FISH, "shoal") == published
    assert page(published, NOT_PUBLISHED, "fish") == text


@pytest.mark.parametrize(
    "text", ['pip install ".[serve]" ./local', "SHOAL_COMPILE=1 pip install .", "pip install torch"]
)
def test_a_command_that_is_only_for_clones_stays(text: str) -> None:
    assert page(text, FISH, "shoal") == text


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
    assert '"fish[operator,serve]==' in files["local/pyproject.toml"]
