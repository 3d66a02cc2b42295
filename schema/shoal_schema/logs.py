"""How every process writes its log: time, level, logger, then ``event=...`` and what belongs to it."""

import logging
import time

FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"
# They tell of each malformed request, each handler or each probe; what matters of that is said by us.
QUIET = {
    "uvicorn": logging.ERROR,
    "httpx": logging.ERROR,
    "httpcore": logging.ERROR,
    # Of huggingface_hub; they tell of addresses that are signed.
    "httpx2": logging.ERROR,
    "httpcore2": logging.ERROR,
    "kopf.objects": logging.WARNING,
    "kopf.activities": logging.WARNING,
    "aiohttp.access": logging.WARNING,
}


def configure(level: str = "INFO") -> None:
    """Log to standard error from now on, what is at least of this `processes.Level`."""
    formatter = logging.Formatter(FORMAT, datefmt="%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name, least in QUIET.items():
        logging.getLogger(name).setLevel(max(least, logging.getLogger().level))
