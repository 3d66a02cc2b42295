"""What the waiting room says at its start of names that are no settings."""

import pytest

from shoal_proxy.waiting.process import Settings
from shoal_schema.environment import SettingsError


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("SHOAL_WAITING_SERVICE_MAX_REQUEST", "SHOAL_WAITING_SERVICE_MAX_REQUESTS"),
        ("SHOAL_WAITNG_MAX_BYTES", "SHOAL_WAITING_MAX_BYTES"),
        ("SHOAL_WAITING_DRAIN_DELAY", "SHOAL_WAITING_DRAIN_DELAY_S"),
    ],
)
def test_a_misspelt_setting_is_refused_with_the_one_that_is_near(name: str, near: str) -> None:
    with pytest.raises(SettingsError, match=f"there is no setting {name}; did you mean {near}\\?"):
        Settings.from_env({name: "5"})
