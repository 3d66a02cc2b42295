"""How the operator keeps a stopping replica serving: ``POST /stay?seconds=N`` on the proxy's admin port."""

from typing import Final

PATH: Final = "/stay"
MAX_S: Final = 3600
"""Limit of a stay."""
DEFAULT_S: Final = 120
"""Limit where the spec sets none: time to load most models; a namespace that is deleted waits half of it."""
