"""What any process makes of its environment."""

import pytest

from shoal_schema.decoding import parse_spec
from shoal_schema.fields.declaring import PROXY, RUNTIME
from shoal_schema.process.environment import (
    SettingsError,
    manifest_fields,
    parse_text,
    read,
    rendered,
    variables,
    variables_of_spec,
)


def test_a_value_that_nests_without_end_is_one_short_sentence() -> None:
    from shoal_runtime.settings import Settings

    with pytest.raises(SettingsError) as caught:
        read(Settings, {"SHOAL_MODEL_PARAMETERS": '{"a":' * 100_000}, RUNTIME)

    assert str(caught.value).startswith("SHOAL_MODEL_PARAMETERS must be a JSON object, not '{")
    assert len(str(caught.value)) < 300


HOSTILE = [
    "https://u:s3cret@host/path?x=s3cret",
    "http://u:s3cret@host:1",
    "u:s3cret@host:1",
    "u:a/s3cret@host:1",
    "https://u:a s3cret@host",
    "host:1?token=s3cret",
    "http://ok:1,http://u:s3cret@host:x",
    '{"url": "https://u:s3cret@host?token=s3cret"',
]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_error_of_a_setting_contains_a_secret_of_a_url(text: str) -> None:
    from shoal_proxy.settings import Settings as ProxySettings
    from shoal_runtime.settings import Settings as RuntimeSettings

    errors = []
    for name in variables():
        for cls, process in ((ProxySettings, PROXY), (RuntimeSettings, RUNTIME)):
            try:
                read(cls, {name: text}, process)
            except SettingsError as error:
                errors.append(str(error))
    assert len(errors) > 50
    assert [each for each in errors if "s3cret" in each] == []


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e400", "", "0x10", "1_0"])
def test_a_number_is_a_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expected|range"):
        parse_text(variables()["SHOAL_BATCHING_MAX_DELAY_MS"], text)


def test_what_is_rendered_is_read_as_it_was() -> None:
    for name, each in manifest_fields().items():
        if each.unset not in (None, (), ""):  # an empty variable means the default
            read_again = parse_text(each, rendered(each, each.unset))
            # A device is a text in a process, of any case.
            assert read_again == each.unset or str(read_again).lower() == str(each.unset).lower(), name


def test_a_spec_gives_a_process_the_variables_that_it_reads_and_that_have_a_value() -> None:
    spec = parse_spec({"spec": {"model": {"uri": "file:///models/cat"}, "queue": {"maxRows": 77}}})
    without = parse_spec({"spec": {"model": {"uri": "file:///models/cat"}}})

    proxy, bare = dict(variables_of_spec(spec, PROXY)), dict(variables_of_spec(without, PROXY))

    assert proxy["SHOAL_QUEUE_MAX_ROWS"] == "77"
    assert "SHOAL_MODEL_URI" not in proxy, "that is the runtime's to read"
    assert dict(variables_of_spec(spec, RUNTIME))["SHOAL_MODEL_URI"] == "file:///models/cat"
    assert "SHOAL_QUEUE_MAX_ROWS" not in bare, "not in the spec"
    assert "" not in {*bare.values(), *dict(variables_of_spec(without, RUNTIME)).values()}
    assert "None" not in {*bare.values(), *proxy.values()} - {proxy["SHOAL_BATCHING_POLICY"]}
