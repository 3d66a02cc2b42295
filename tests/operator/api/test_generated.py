"""What is generated from the model is what lies in the repository, and what the contracts say."""

import re
from pathlib import Path
from typing import Any

import pytest

from shoal_schema.declaring import fields_of
from shoal_schema.generate import generated_files
from shoal_schema.resource.service import InferenceServiceSpec

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^\| `(SHOAL_\w+)` \|.*\| `([\w.]+)` \|$", re.MULTILINE)


@pytest.mark.parametrize("path", sorted(generated_files()))
def test_the_stored_file_is_the_generated_one(path: str) -> None:
    assert (ROOT / path).read_text() == generated_files()[path], "run `make crds`"


def test_variables_and_fields_are_the_table_of_the_contracts() -> None:
    table = dict(ROW.findall((ROOT / "docs/contracts.md").read_text()))
    assert table.pop("SHOAL_MODEL_NAME") == "metadata.name"

    ours = {view.schema.env: path for path, view in _variables(InferenceServiceSpec, "")}

    assert {name: ours.get(name) for name in table} == table


def test_a_spec_may_not_ask_for_more_than_the_process_takes() -> None:
    text = (ROOT / "docs/contracts.md").read_text()
    checked = 0
    for _, view in _variables(InferenceServiceSpec, ""):
        row = re.search(rf"^\| `{view.schema.env}` \|[^|]*\| (?:> )?(\d+ \w*) ?to (\d+ ?\w*)", text, re.MULTILINE)
        if row and view.schema.minimum is not None and view.schema.maximum is not None:
            low, high = (_number(part) for part in row.groups())
            assert low <= view.schema.minimum <= view.schema.maximum <= high, view.name
            checked += 1

    assert checked >= 10


def _number(text: str) -> int:
    digits, _, unit = text.strip().partition(" ")
    return int(digits) * {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}.get(unit, 1)


def _variables(cls: Any, path: str) -> Any:
    for view in fields_of(cls):
        if view.schema.env:
            yield f"{path}{view.name}", view
        elif hasattr(view.type, "__dataclass_fields__"):
            yield from _variables(view.type, f"{path}{view.name}.")
