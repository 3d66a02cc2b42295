"""Unknown settings of the activator are rejected."""

import pytest

from shoal_proxy.activator.process import Settings
from shoal_schema.process.environment import SettingsError


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("SHOAL_ACTIVATOR_SERVICE_MAX_REQUEST", "SHOAL_ACTIVATOR_SERVICE_MAX_REQUESTS"),
        ("SHOAL_ACTIVATR_MAX_BYTES", "SHOAL_ACTIVATOR_MAX_BYTES"),
        ("SHOAL_ACTIVATOR_DRAIN_DELAY", "SHOAL_ACTIVATOR_DRAIN_DELAY_S"),
    ],
)
def test_an_unknown_setting_is_rejected_with_a_suggestion(name: str, near: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}.*{near}"):
        Settings.from_env({name: "5"})
