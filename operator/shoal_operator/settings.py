"""The operator's own settings, from the environment."""

from collections.abc import Mapping
from dataclasses import dataclass

from shoal_operator.errors import SettingsError
from shoal_operator.logs import LEVELS, log_level
from shoal_operator.manifests.target import INTERNAL_URL, Defaults
from shoal_operator.misspelt import misspelt
from shoal_operator.planning.lease import LEASE_NAME
from shoal_operator.planning.observation import Key

_PREFIX = "SHOAL_OPERATOR_"
NAMES = (
    "SHOAL_LOG_LEVEL",
    *(
        f"{_PREFIX}{name}"
        for name in (
            "PROXY_IMAGE",
            "RUNTIME_IMAGE",
            "LISTEN_HOST",
            "SERVICE_URL",
            "ADMIN_NAMESPACES",
            "IDENTITY",
            "NAMESPACE",
            "WATCH_NAMESPACES",
            "HEALTH_LISTEN",
            "METRICS_LISTEN",
            "RESYNC_S",
            "SCRAPE_INTERVAL_S",
            "SCALE_DOWN_WINDOW_S",
            "WORKERS",
        )
    ),
)
"""What `Settings.from_env` reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that the environment decides.

    Args:
        identity: this process among several operators; must be unique (the pod's name).
        namespace: where the Lease lies.
        watch_namespaces: serve only these; empty means the whole cluster.
        health_listen: ``HOST:PORT`` of ``/healthz``, with brackets around an address of IPv6; empty means none.
        metrics_listen: ``HOST:PORT`` of ``/metrics``; empty means none.
        resync_s: look at every service again after this long, though nothing was heard (s).
        scrape_interval_s: how often proxies are read (s).
        scale_down_window_s: replicas fall to the highest want of this long (s).
        workers: services that are looked at at the same time.
        log_level: what is less important is not logged.
    """

    defaults: Defaults
    identity: str
    namespace: str
    watch_namespaces: tuple[str, ...]
    health_listen: str
    metrics_listen: str
    resync_s: float
    scrape_interval_s: float
    scale_down_window_s: float
    workers: int
    log_level: str = "INFO"

    @property
    def lease(self) -> Key:
        """The Lease that decides which operator writes."""
        return Key(self.namespace, LEASE_NAME)

    @property
    def heartbeat(self) -> Key:
        """The Lease whose renewals the watches hear: the one that decides who writes, or one beside what is watched."""
        if not self.watch_namespaces or self.namespace in self.watch_namespaces:
            return self.lease
        return Key(self.watch_namespaces[0], f"{LEASE_NAME}-heartbeat")

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "Settings":
        """Read the settings.

        Raises:
            SettingsError: one is out of range, or a name is misspelt.
        """
        faults = misspelt(environ, "operator", NAMES)
        if faults:
            raise SettingsError("; ".join(faults))
        reader = _Reader(environ)
        return cls(
            defaults=Defaults(
                proxy_image=reader.text("PROXY_IMAGE", "shoal/proxy:0.1.0"),
                runtime_image=reader.text("RUNTIME_IMAGE", "shoal/runtime:0.1.0"),
                listen_host=reader.text("LISTEN_HOST", "::").strip("[]"),
                service_url=reader.text("SERVICE_URL", INTERNAL_URL),
                admin_namespaces=reader.names("ADMIN_NAMESPACES"),
                operator=reader.text("NAMESPACE", "default"),
            ),
            identity=reader.text("IDENTITY", ""),
            namespace=reader.text("NAMESPACE", "default"),
            watch_namespaces=reader.names("WATCH_NAMESPACES"),
            health_listen=reader.address("HEALTH_LISTEN"),
            metrics_listen=reader.address("METRICS_LISTEN"),
            resync_s=reader.number("RESYNC_S", 600, 1, 86400),
            scrape_interval_s=reader.number("SCRAPE_INTERVAL_S", 2, 0.1, 60),
            scale_down_window_s=reader.number("SCALE_DOWN_WINDOW_S", 300, 0, 86400),
            workers=int(reader.number("WORKERS", 8, 1, 256)),
            log_level=reader.log_level(),
        )


@dataclass(frozen=True, slots=True)
class _Reader:
    environ: Mapping[str, str]

    def text(self, name: str, default: str) -> str:
        return self.environ.get(_PREFIX + name, "").strip() or default

    def log_level(self) -> str:
        text = self.environ.get("SHOAL_LOG_LEVEL", "").strip() or "INFO"
        try:
            return log_level(text)
        except ValueError:
            raise SettingsError(f"SHOAL_LOG_LEVEL must be {', '.join(LEVELS)}, not {text!r}") from None

    def names(self, name: str) -> tuple[str, ...]:
        parts = (part.strip() for part in self.text(name, "").split(","))
        return tuple(part for part in parts if part)

    def address(self, name: str) -> str:
        """Return ``HOST:PORT``; brackets around an address of IPv6 may be missing, as in ``$(POD_IP):8081``."""
        text = self.text(name, "")
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if text and not (host and port.isdecimal() and 0 < int(port) < 65536):
            raise SettingsError(f"{_PREFIX}{name} must be HOST:PORT, not {text!r}")
        return f"[{host}]:{port}" if ":" in host else text

    def number(self, name: str, default: float, low: float, high: float) -> float:
        text = self.text(name, str(default))
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise SettingsError(f"{_PREFIX}{name} must be {low} to {high}, not {text!r}")
        return value
