"""Settings of the proxy, read from environment variables at the start."""

from collections.abc import Mapping
from math import inf
from typing import Self

from msgspec import Struct, field, structs

from shoal_schema.fields.addresses import TcpAddress
from shoal_schema.fields.declaring import PROXY
from shoal_schema.interfaces.headers import GRAPHS
from shoal_schema.process import environment
from shoal_schema.process.environment import SettingsError
from shoal_schema.process.settings.log import LogSettings
from shoal_schema.process.settings.model import Metadata
from shoal_schema.process.settings.proxy import ProxyProcess
from shoal_schema.resource.access import GatewayHeaderSpec, JwtSpec, LimitsSpec
from shoal_schema.resource.asynchronous import AsynchronousSpec, AsyncStoreSpec, WebhooksSpec
from shoal_schema.resource.model import ModelSpec
from shoal_schema.resource.proxy import CorsSpec, ProxySpec
from shoal_schema.resource.rollout import RolloutSpec
from shoal_schema.resource.traffic import BatchingPolicy, BatchingSpec, QueueSpec, queue_rows


class Settings(Struct, frozen=True):
    """The proxy's settings, by section."""

    process: ProxyProcess = field(default_factory=ProxyProcess)
    metadata: Metadata = field(default_factory=Metadata)
    model: ModelSpec = field(default_factory=ModelSpec)
    proxy: ProxySpec = field(default_factory=ProxySpec)
    proxy_cors: CorsSpec = field(default_factory=CorsSpec)
    batching: BatchingSpec = field(default_factory=BatchingSpec)
    queue: QueueSpec = field(default_factory=QueueSpec)
    asynchronous: AsynchronousSpec = field(default_factory=lambda: AsynchronousSpec(timeout_seconds=0))
    async_store: AsyncStoreSpec = field(default_factory=lambda: AsyncStoreSpec(uri=""))
    webhooks: WebhooksSpec = field(default_factory=lambda: WebhooksSpec(allowed_hosts=()))
    rollout: RolloutSpec = field(default_factory=RolloutSpec)
    access_header: GatewayHeaderSpec = field(default_factory=lambda: GatewayHeaderSpec("", ()))
    access_jwt: JwtSpec = field(default_factory=lambda: JwtSpec("", "", ""))
    access_limits: LimitsSpec = field(default_factory=LimitsSpec)
    logging: LogSettings = field(default_factory=LogSettings)

    @property
    def name(self) -> str:
        """The model's name, in clients' paths and at the runtime."""
        return self.metadata.name or "model"

    @property
    def version(self) -> str:
        """The only version of the model."""
        return self.model.version

    @property
    def queue_rows(self) -> int:
        """The maximum number of rows in the queue."""
        return queue_rows(self.queue, self.batching)

    @property
    def has_asynchronous(self) -> bool:
        """Whether clients may send asynchronous requests."""
        return self.asynchronous.timeout_seconds > 0

    @property
    def has_access_control(self) -> bool:
        """Whether requests need a key or a token."""
        return bool(self.process.api_keys or self.access_jwt.issuer)

    @property
    def forwarded_headers(self) -> tuple[bytes, ...]:
        """Lower-case names of the headers to forward to the runtime."""
        # The path through nested graphs is forwarded, to detect cycles.
        passed = () if self.process.graph is None else (GRAPHS,)
        return tuple(sorted({name.lower().encode() for name in (*self.proxy.forward_headers, *passed)}))

    @property
    def longest_s(self) -> float:
        """The upper limit on a client's timeout (s)."""
        graph = self.process.graph
        return inf if graph is None or graph.deadline_milliseconds is None else graph.deadline_milliseconds / 1000

    @property
    def fair_share_header(self) -> bytes:
        """Lower-case name of the fair-share header; empty if not set."""
        return (self.queue.fair_share_header or "").lower().encode()

    @property
    def grpc_address(self) -> TcpAddress | None:
        """The address of the gRPC port; None without gRPC."""
        if self.proxy.grpc_port is None:
            return None
        # Where HTTP listens on a Unix socket, the admin port has the host's address.
        host = self.process.listen.host or self.process.admin_listen.host
        return TcpAddress(host, self.proxy.grpc_port)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Return the settings in ``environ``; empty variables mean defaults.

        Raises:
            SettingsError: a value is malformed or out of range, a name is unknown, or two settings conflict.
        """
        settings = environment.read(cls, environ, PROXY)
        if (graph := settings.process.graph) is not None:
            # Each request is sent alone, many at a time; the scheduler sends one more than `in_flight`, ahead.
            unbatched = BatchingSpec(
                policy=BatchingPolicy.NONE, max_batch_size=_GRAPH_ROWS, in_flight=max(1, graph.in_flight - 1)
            )
            settings = structs.replace(settings, batching=unbatched)
        settings.validate()
        return settings

    def validate(self) -> None:
        """Check for settings that conflict with each other.

        Raises:
            SettingsError: two settings conflict.
        """
        batching, queue, process = self.batching, self.queue, self.process
        if bool(process.tls_certificate) != bool(process.tls_key) or (process.tls_client_ca and not process.tls_key):
            raise SettingsError(
                "SHOAL_PROXY_TLS_CERTIFICATE and SHOAL_PROXY_TLS_KEY must be set together,"
                " and SHOAL_PROXY_TLS_CLIENT_CA needs both"
            )
        # A graph forms no batches: it runs a request of more rows than the queue's limit alone.
        if self.process.graph is None and self.queue_rows < batching.max_batch_size:
            raise SettingsError(
                f"SHOAL_QUEUE_MAX_ROWS must be at least SHOAL_BATCHING_MAX_BATCH_SIZE ({batching.max_batch_size}),"
                f" not {self.queue_rows}"
            )
        if self.has_asynchronous and process.graph is not None:
            raise SettingsError("SHOAL_ASYNC_TIMEOUT_S must be 0 or unset: graphs have no asynchronous requests")
        if (self.async_store.uri or self.webhooks.allowed_hosts) and not self.has_asynchronous:
            raise SettingsError("SHOAL_ASYNC_STORE and SHOAL_ASYNC_WEBHOOK_HOSTS need SHOAL_ASYNC_TIMEOUT_S")
        header, jwt = self.access_header, self.access_jwt
        if any((jwt.issuer, jwt.audience, jwt.jwks_url)) and not all((jwt.issuer, jwt.audience, jwt.jwks_url)):
            raise SettingsError(
                "SHOAL_ACCESS_JWT_ISSUER, SHOAL_ACCESS_JWT_AUDIENCE and SHOAL_ACCESS_JWT_JWKS_URL must be set together"
            )
        if header.name and not (header.keys and process.api_keys):
            raise SettingsError("SHOAL_ACCESS_HEADER needs SHOAL_ACCESS_HEADER_KEYS and SHOAL_PROXY_API_KEYS")
        if batching.max_delay_milliseconds >= queue.timeout_milliseconds:
            raise SettingsError(
                f"SHOAL_BATCHING_MAX_DELAY_MS must be less than SHOAL_QUEUE_TIMEOUT_MS"
                f" ({queue.timeout_milliseconds:g}), not {batching.max_delay_milliseconds:g}: requests expire"
                " before their batch closes"
            )


_GRAPH_ROWS = 1 << 18
"""Most rows of one request through a graph, the same as for any request: the proxy of each step splits it."""
