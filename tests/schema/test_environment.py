"""What any process makes of its environment."""

import pytest

from shoal_schema.declaring import RUNTIME
from shoal_schema.environment import SettingsError, manifest_fields, parse_text, read, rendered, variables


def test_a_value_that_nests_without_end_is_one_short_sentence() -> None:
    from shoal_runtime.settings import Settings

    with pytest.raises(SettingsError) as caught:
        read(Settings, {"SHOAL_MODEL_PARAMETERS": '{"a":' * 100_000}, RUNTIME)

    assert str(caught.value).startswith("SHOAL_MODEL_PARAMETERS must be a JSON object, not '{")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e400", "", "0x10", "1_0"])
def test_a_number_is_a_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expected|range"):
        parse_text(variables()["SHOAL_BATCHING_MAX_DELAY_MS"], text)


def test_what_is_rendered_is_read_as_it_was() -> None:
    for name, each in manifest_fields().items():
        if each.unset not in (None, ()):
            read_again = parse_text(each, rendered(each, each.unset))
            # A device is a text in a process, of any case.
            assert read_again == each.unset or str(read_again).lower() == str(each.unset).lower(), name
