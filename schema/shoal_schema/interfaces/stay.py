"""The request with which the operator keeps a stopping replica serving: ``POST /stay?seconds=N`` on its admin port."""

from typing import Final

PATH: Final = "/stay"
MAX_S: Final = 3600
"""Maximum of ``seconds``."""
DEFAULT_S: Final = 120
"""Default of `rollout.replacementTimeoutSeconds`: time to load most models. A deleted namespace waits half of it."""
