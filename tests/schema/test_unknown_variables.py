"""Environment variables that look like settings."""

import pytest

from shoal_schema.fields.declaring import Process
from shoal_schema.process.unknown_variables import unknown_variable_errors

KNOWN = ("SHOAL_PROXY_LISTEN", "SHOAL_BATCHING_MAX_BATCH_SIZE", "SHOAL_RUNTIME_DEVICE")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("SHOAL_PROXY_LISTENS", "a", "did you mean SHOAL_PROXY_LISTEN?"),
        ("SHOAL_PROXY_ZZZ", "a", "settings start with"),
        ("SHOAL_WEB_PORT", "8080", "there is no setting SHOAL_WEB_PORT"),
    ],
)
def test_an_unknown_setting_is_an_error(name: str, value: str, expected: str) -> None:
    [error] = unknown_variable_errors({name: value}, Process.PROXY, KNOWN)

    assert expected in error


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SHOAL_PROXY_LISTEN", "a"),
        ("SHOAL_RUNTIME_NEW", "a setting of another component's newer release"),
        ("SHOAL_WEB_SERVICE_HOST", "10.0.0.1"),
        ("SHOAL_WEB_PORT", "tcp://10.0.0.1:80"),
        ("OTHER", "a"),
    ],
)
def test_other_variables_are_none(name: str, value: str) -> None:
    assert unknown_variable_errors({name: value}, Process.PROXY, KNOWN) == []
