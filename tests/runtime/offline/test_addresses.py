"""Addresses of inputs and outputs: an invalid one is one line, without its secrets."""

import pytest

from shoal_runtime.offline.directories import open_input, open_outputs
from shoal_runtime.offline.errors import InvalidSettings

HOSTILE = [
    "s3://k:s3cret@bucket/x",
    "s3://bucket/x?sig=s3cret",
    "gs://s3cret@bucket/x",
    "az://box/x?sas=s3cret",
    "abfss://box:s3cret@account.dfs.core.windows.net/x",
    "file://u:s3cret@host/x",
    "ftp://u:s3cret@host/x",
    "https://u:s3cret@host/x?sig=s3cret",
    "s3://",
]


@pytest.mark.parametrize("uri", HOSTILE)
def test_invalid_address_is_an_error_of_the_settings(uri: str) -> None:
    # In an input, ? is a part of a pattern.
    with pytest.raises(InvalidSettings) as of_input:
        open_input(uri if "@" in uri else "s3://k:s3cret@bucket/x", ())
    with pytest.raises(InvalidSettings) as of_output:
        open_outputs(uri, "")
    with pytest.raises(InvalidSettings) as of_errors:
        open_outputs("/nowhere", uri)

    with pytest.raises(InvalidSettings) as of_pattern:
        open_input("/tmp/none/x?sig=s3cret", ())
    for caught in (of_input, of_output, of_errors, of_pattern):
        assert "s3cret" not in str(caught.value)
