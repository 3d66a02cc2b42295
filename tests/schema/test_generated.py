"""What follows from the schema is what lies in the repository."""

from pathlib import Path

import pytest

from shoal_schema.fields.declaring import element_of
from shoal_schema.generate import generated_files
from shoal_schema.process.environment import variables
from shoal_schema.publishing.tables import UnknownTableError, filled

ROOT = Path(__file__).parents[2]
FILES = generated_files(ROOT)


@pytest.mark.parametrize("path", sorted(FILES))
def test_the_stored_file_is_the_generated_one(path: str) -> None:
    assert (ROOT / path).read_text() == FILES[path], "run `make generated`"


def test_every_setting_stands_in_one_table_of_the_settings_or_of_the_operator() -> None:
    pages = FILES["docs/reference/settings.md"] + FILES["docs/reference/operator-settings.md"]

    assert {name: pages.count(f"| `{name}` |") for name in variables()} == dict.fromkeys(variables(), 1)


def test_every_setting_states_what_it_means_and_every_number_has_bounds() -> None:
    for name, each in variables().items():
        assert each.description, name
        numbers = each.kind in (int, float) and element_of(each.kind) is None
        assert not numbers or (each.meta.le is not None and (each.meta.ge, each.meta.gt) != (None, None)), name


def test_an_unknown_table_is_an_error() -> None:
    with pytest.raises(UnknownTableError, match="'of everything'; known are"):
        filled("<!-- generated: of everything -->\n<!-- end -->\n")
