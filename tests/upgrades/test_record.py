"""Notes of definitions: a new one is a patch of the nearest, one that is noted already adds nothing."""

import copy
import json

import jsonpatch
import pytest

from tests.upgrades.record import line_of
from tests.upgrades.recorded import DEFINITIONS, Recorded, recorded


@pytest.mark.parametrize("plural", DEFINITIONS)
def test_a_changed_definition_is_noted_as_a_patch_of_the_nearest(plural: str) -> None:
    earlier = recorded(plural)
    nearest = earlier[-2]
    spec = copy.deepcopy(nearest.spec)
    spec["names"]["shortNames"] = ["new"]
    line = line_of("1.0.0", Recorded(plural, "present", spec), earlier)

    assert line is not None
    note = json.loads(line)
    assert (note["name"], note["base"]) == ("1.0.0", nearest.name)
    assert jsonpatch.apply_patch(nearest.spec, note["patch"]) == spec


@pytest.mark.parametrize("plural", DEFINITIONS)
def test_a_definition_that_is_noted_adds_no_line(plural: str) -> None:
    assert line_of("1.0.0", recorded(plural)[0], recorded(plural)) is None
