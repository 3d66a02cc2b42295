"""Settings of the environment only: addresses, and limits that are rarely changed."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from shoal_schema.addresses import Address, TcpAddress
from shoal_schema.declaring import (
    ACTIVATOR,
    BATCH,
    GIB,
    KIB,
    MIB,
    MODEL,
    NAME,
    NAME_IN_WORDS,
    OPERATOR,
    PROXY,
    RUNTIME,
    TIB,
    Env,
    FieldFault,
    SettingsSection,
)
from shoal_schema.policy import Policy
from shoal_schema.resource.graph import GraphSpec
from shoal_schema.stay import MAX_S as MAX_STAY_S
from shoal_schema.version import VERSION

_ADDRESS = "HOST:PORT or unix:PATH"
PEER = r"^(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}\Z"
_LAST_PORT = 65535
_DAY, _TIME = "(Mon|Tue|Wed|Thu|Fri|Sat|Sun)", "([01][0-9]|2[0-3]):[0-5][0-9]"
UPGRADE_WINDOW = rf"^(({_DAY}(,{_DAY})* )?{_TIME}-{_TIME}( UTC)?)?\Z"
_TEXTS = "comma-separated names"
_HEAD = "Maximum size of a request line and its headers, with 32 bytes added per header."
_HEAD_TIME = "Time limit for a request head, from the start of the connection or from the head's first byte."


class Level(StrEnum):
    """Minimum levels of the log."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


LOG_FORMAT = "SHOAL_LOG_FORMAT"


class LogForm(StrEnum):
    """Formats of the log."""

    TEXT = "text"
    JSON = "json"


class Metadata(SettingsSection, frozen=True):
    """Identity of a service."""

    name: (
        Annotated[
            str,
            Meta(pattern=NAME, max_length=253, description="Name of the model, in clients' paths and at the runtime."),
            Env("SHOAL_MODEL_NAME", PROXY, RUNTIME, MODEL, allowed=NAME_IN_WORDS),
        ]
        | None
    ) = None


class LogSettings(SettingsSection, frozen=True):
    """Log settings of every process."""

    level: Annotated[
        Level,
        Meta(description="Minimum level of log lines."),
        Env("SHOAL_LOG_LEVEL", PROXY, RUNTIME, MODEL, OPERATOR, ACTIVATOR, BATCH),
    ] = Level.INFO
    form: Annotated[
        LogForm,
        Meta(description="Format of the log; `json` is one object per line ([logs](../reference/logs.md))."),
        Env(LOG_FORMAT, PROXY, RUNTIME, MODEL, OPERATOR, ACTIVATOR, BATCH),
    ] = LogForm.TEXT


class ProxyProcess(SettingsSection, frozen=True):
    """Settings of the proxy process."""

    # Identity and addresses.
    instance: (
        Annotated[
            str,
            Meta(
                pattern=NAME,
                description=(
                    "Identity of this replica, sent in the header `x-shoal-instance`. The operator sets it to the "
                    "pod's uid, and ignores metrics with a different uid."
                ),
            ),
            Env("SHOAL_PROXY_INSTANCE", PROXY, allowed=NAME_IN_WORDS),
        ]
        | None
    ) = None
    listen: Annotated[
        Address,
        Meta(
            description=(
                "Address for clients. IPv6 addresses need brackets; `[::]` is every IPv4 and IPv6 address. Port 0 "
                "selects a free port."
            )
        ),
        Env("SHOAL_PROXY_LISTEN", PROXY, allowed=_ADDRESS),
    ] = Address("127.0.0.1", 8080)
    admin_listen: Annotated[
        TcpAddress,
        Meta(description="Address of health, metrics and drain."),
        Env("SHOAL_PROXY_ADMIN_LISTEN", PROXY, allowed="HOST:PORT"),
    ] = TcpAddress("127.0.0.1", 9090)
    admin_hosts: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^(\*|[A-Za-z0-9._-]+)\Z")], ...],
        Meta(
            description=(
                "Additional host names that the admin port accepts, or `*` for any. It always accepts IP "
                "addresses, names without a dot, and names under `localhost`, `svc`, `cluster.local` and "
                "`internal`."
            )
        ),
        Env("SHOAL_PROXY_ADMIN_HOSTS", PROXY, allowed="comma-separated host names or *"),
    ] = ()
    runtime: Annotated[
        Address,
        Meta(description="Address of the V2 server that runs the model: Shoal's runtime or a foreign one."),
        Env("SHOAL_PROXY_RUNTIME", PROXY, allowed="unix:PATH or http://HOST:PORT"),
    ] = Address(path="/run/shoal/runtime.sock")
    # Graphs.
    graph: (
        Annotated[
            GraphSpec,
            Meta(
                description="The graph to run instead of a runtime: the spec of an `InferenceGraph` with a `url`"
                " for each step."
            ),
            Env("SHOAL_PROXY_GRAPH", PROXY, allowed="a JSON object"),
        ]
        | None
    ) = None
    namespace: Annotated[
        str,
        Meta(description="Namespace of the graph. Graphs of the same name in two namespaces may call each other."),
        Env("SHOAL_PROXY_NAMESPACE", PROXY, allowed="text"),
    ] = ""
    composer_dir: Annotated[
        str,
        Meta(description="Directory of modules for a graph's `composer.importPath`, searched last."),
        Env("SHOAL_PROXY_COMPOSER_DIR", PROXY, allowed="a folder"),
    ] = ""
    # Shutdown and peers.
    replacement_timeout_s: Annotated[
        float,
        Meta(
            ge=0,
            le=MAX_STAY_S,
            description=(
                "On SIGTERM, maximum time to keep serving while the operator reports no other ready replica. 0: "
                "there is no operator."
            ),
        ),
        Env("SHOAL_PROXY_REPLACEMENT_TIMEOUT_S", PROXY),
    ] = 0.0
    peers: Annotated[
        tuple[Annotated[str, Meta(pattern=PEER)], ...],
        Meta(
            description="Addresses of peers, to which requests that would be late are forwarded. A host name"
            " stands for all of its addresses, resolved again every few seconds; the replica itself may be"
            " among them."
        ),
        Env("SHOAL_PROXY_PEERS", PROXY, allowed="comma-separated HOST:PORT"),
    ] = ()
    # TLS and keys.
    tls_certificate: Annotated[
        str,
        Meta(
            description=(
                "File of the server's certificate chain, in PEM. If set, the HTTP and gRPC ports accept only TLS. "
                "It is reloaded when it changes."
            )
        ),
        Env("SHOAL_PROXY_TLS_CERTIFICATE", PROXY, allowed="a file"),
    ] = ""
    tls_key: Annotated[
        str,
        Meta(description="File of the certificate's private key, in PEM without a password."),
        Env("SHOAL_PROXY_TLS_KEY", PROXY, allowed="a file"),
    ] = ""
    tls_client_ca: Annotated[
        str,
        Meta(
            description="File of authorities, in PEM, for client certificates (mutual TLS). Default: clients need"
            " no certificate."
        ),
        Env("SHOAL_PROXY_TLS_CLIENT_CA", PROXY, allowed="a file"),
    ] = ""
    api_keys: (
        Annotated[
            str,
            Meta(
                description="API keys: a directory with a file per client, such as a mounted Secret, or a file of"
                " `NAME=KEY` lines. Checked for changes every second."
            ),
            Env("SHOAL_PROXY_API_KEYS", PROXY, allowed="a path"),
        ]
        | None
    ) = None
    padding_factor: Annotated[
        float,
        Meta(
            ge=2,
            le=1_000_000,
            description=(
                "For inputs without buckets: maximum ratio of padded to original size for a row to share a batch. "
                "Rows of up to 128 elements have no limit."
            ),
        ),
        Env("SHOAL_BATCHING_PADDING_FACTOR", PROXY),
    ] = 4.0
    # Limits of a connection: a slow or silent client must not hold resources forever.
    max_head_bytes: Annotated[
        int, Meta(ge=KIB, le=16 * MIB, description=_HEAD), Env("SHOAL_PROXY_MAX_HEAD_BYTES", PROXY)
    ] = 32 * KIB
    head_timeout_s: Annotated[
        float, Meta(gt=0, le=3600, description=_HEAD_TIME), Env("SHOAL_PROXY_HEAD_TIMEOUT_S", PROXY)
    ] = 30.0
    body_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="Time limit for a request body that arrives more slowly than `SHOAL_PROXY_MIN_BYTES_PER_S`.",
        ),
        Env("SHOAL_PROXY_BODY_TIMEOUT_S", PROXY),
    ] = 60.0
    write_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="Time limit for a response that the client reads more slowly than"
            " `SHOAL_PROXY_MIN_BYTES_PER_S`.",
        ),
        Env("SHOAL_PROXY_WRITE_TIMEOUT_S", PROXY),
    ] = 60.0
    min_bytes_per_s: Annotated[
        int,
        Meta(
            ge=1,
            le=TIB,
            description="Minimum rate of bodies and responses, measured over each of these two time limits. Faster"
            " transfers have no time limit.",
        ),
        Env("SHOAL_PROXY_MIN_BYTES_PER_S", PROXY),
    ] = 16 * KIB
    max_unsent_bytes: Annotated[
        int,
        Meta(
            ge=MIB,
            le=TIB,
            description=(
                "Limit of all responses that clients have not read. Beyond it, the proxy sends no batch, encodes "
                "no result, and disconnects the slowest clients that would exceed `SHOAL_PROXY_WRITE_TIMEOUT_S`."
            ),
        ),
        Env("SHOAL_PROXY_MAX_UNSENT_BYTES", PROXY),
    ] = 256 * MIB
    # Longer than any load balancer's: the side that reuses a connection must be the one that closes it.
    idle_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="Time that an idle connection is kept open. It must exceed that of any load balancer.",
        ),
        Env("SHOAL_PROXY_IDLE_TIMEOUT_S", PROXY),
    ] = 620.0
    connection_age_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86400,
            description=(
                "Age at which a connection is closed after a response (`Connection: close`), so that new replicas "
                "receive requests. Reduced at random by up to half. 0: never."
            ),
        ),
        Env("SHOAL_PROXY_CONNECTION_AGE_S", PROXY),
    ] = 60.0
    # Limits over all connections.
    max_connections: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Maximum number of client connections. 0: 10,000, or fewer if the limit of open files is"
            " lower.",
        ),
        Env("SHOAL_PROXY_MAX_CONNECTIONS", PROXY),
    ] = 0
    max_connections_per_address: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Maximum number of connections per client address. 0: no limit, as an ingress has one"
            " address for all clients.",
        ),
        Env("SHOAL_PROXY_MAX_CONNECTIONS_PER_ADDRESS", PROXY),
    ] = 0
    access_log_percent: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            description="Percentage of inference requests to log, chosen at random. 0: none"
            " ([logs](../reference/logs.md)).",
        ),
        Env("SHOAL_PROXY_ACCESS_LOG_PERCENT", PROXY),
    ] = 0.0


class RuntimeProcess(SettingsSection, frozen=True):
    """Settings of the runtime process."""

    listen: Annotated[
        Address, Meta(description="Address to listen on."), Env("SHOAL_RUNTIME_LISTEN", RUNTIME, allowed=_ADDRESS)
    ] = Address(path="/run/shoal/runtime.sock")
    # Fetching a model: an archive must not fill the disk.
    cache_dir: (
        Annotated[
            str,
            Meta(description="Directory of downloads. Default: `shoal` in the user's cache directory."),
            Env("SHOAL_MODEL_CACHE_DIR", RUNTIME, MODEL, allowed="a directory"),
        ]
        | None
    ) = None
    model_ca_bundle: Annotated[
        str,
        Meta(
            description="File of authorities, in PEM, to trust beside the system's when a model or rows are"
            " fetched. `AWS_CA_BUNDLE`, `REQUESTS_CA_BUNDLE` and `CURL_CA_BUNDLE` add authorities too;"
            " `SSL_CERT_FILE` and `SSL_CERT_DIR` replace the system's."
        ),
        Env("SHOAL_MODEL_CA_BUNDLE", RUNTIME, MODEL, allowed="a file"),
    ] = ""
    model_max_bytes: Annotated[
        int,
        Meta(ge=MIB, le=1024 * TIB, description="Maximum size of a download, and of an unpacked archive."),
        Env("SHOAL_MODEL_MAX_BYTES", RUNTIME, MODEL),
    ] = 128 * GIB
    model_max_files: Annotated[
        int,
        Meta(ge=1, le=10_000_000, description="Maximum number of files and directories in an archive."),
        Env("SHOAL_MODEL_MAX_FILES", RUNTIME, MODEL),
    ] = 100_000
    model_max_ratio: Annotated[
        int,
        Meta(ge=1, le=100_000, description="Maximum compression ratio of an archive, beyond the first 64 MiB."),
        Env("SHOAL_MODEL_MAX_RATIO", RUNTIME, MODEL),
    ] = 100
    fetch_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="Time limit to download, verify and unpack the model; the process then exits with 3.",
        ),
        Env("SHOAL_MODEL_FETCH_TIMEOUT_S", RUNTIME, MODEL),
    ] = 3600.0
    model_fetched: Annotated[
        bool,
        Meta(
            description="Whether an init container has fetched the model into the cache: the runtime then makes no"
            " requests and needs no credentials."
        ),
        Env("SHOAL_MODEL_FETCHED", RUNTIME),
    ] = False
    # Loading and serving.
    load_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="Time limit to import, load and warm up the model; the process then exits with 3.",
        ),
        Env("SHOAL_MODEL_LOAD_TIMEOUT_S", RUNTIME),
    ] = 1800.0
    max_body_bytes: Annotated[
        int,
        Meta(ge=KIB, le=TIB, description="Maximum size of an inference request's body."),
        Env("SHOAL_RUNTIME_MAX_BODY_BYTES", RUNTIME),
    ] = GIB
    max_head_bytes: Annotated[
        int, Meta(ge=KIB, le=16 * MIB, description=_HEAD), Env("SHOAL_RUNTIME_MAX_HEAD_BYTES", RUNTIME)
    ] = 32 * KIB
    head_timeout_s: Annotated[
        float, Meta(gt=0, le=3600, description=_HEAD_TIME), Env("SHOAL_RUNTIME_HEAD_TIMEOUT_S", RUNTIME)
    ] = 30.0
    transfer_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="Time limit for a body or a response that moves more slowly than"
            " `SHOAL_RUNTIME_MIN_BYTES_PER_S`.",
        ),
        Env("SHOAL_RUNTIME_TRANSFER_TIMEOUT_S", RUNTIME),
    ] = 60.0
    min_bytes_per_s: Annotated[
        int,
        Meta(ge=1, le=TIB, description="Minimum rate of bodies and responses. Faster transfers have no time limit."),
        Env("SHOAL_RUNTIME_MIN_BYTES_PER_S", RUNTIME),
    ] = 16 * KIB
    shutdown_timeout_s: Annotated[
        float,
        Meta(ge=0, le=3600, description="On SIGTERM, time to wait for open connections."),
        Env("SHOAL_RUNTIME_SHUTDOWN_TIMEOUT_S", RUNTIME),
    ] = 60.0


class OperatorProcess(SettingsSection, frozen=True):
    """Settings of the operator process."""

    # Defaults of the pods that the operator creates.
    proxy_image: Annotated[
        str,
        Meta(description="Default image of the proxy."),
        Env("SHOAL_OPERATOR_PROXY_IMAGE", OPERATOR),
    ] = f"shoal/proxy:{VERSION}"
    runtime_image: Annotated[
        str,
        Meta(description="Default image of the runtime."),
        Env("SHOAL_OPERATOR_RUNTIME_IMAGE", OPERATOR),
    ] = f"shoal/runtime:{VERSION}"
    listen_host: Annotated[
        str,
        Meta(
            description=(
                "Address that proxies listen on: `::` is every IPv4 and IPv6 address; `$(POD_IP)` is the pod's "
                "own, for pods that share a network."
            )
        ),
        Env("SHOAL_OPERATOR_LISTEN_HOST", OPERATOR),
    ] = "::"
    service_url: Annotated[
        str,
        Meta(
            description="URL of a Service without a route; `$(NAME)`, `$(NAMESPACE)` and `$(CLUSTER_IP)` are the"
            " Service's."
        ),
        Env("SHOAL_OPERATOR_SERVICE_URL", OPERATOR),
    ] = "http://$(NAME).$(NAMESPACE).svc"
    peers: Annotated[
        bool,
        Meta(
            description="Whether replicas find their peers through a headless Service, `NAME-peers`, to forward"
            " requests that would be late. Needs the cluster's DNS."
        ),
        Env("SHOAL_OPERATOR_PEERS", OPERATOR),
    ] = True
    pod_log_format: Annotated[
        LogForm,
        Meta(description="Format of the log of the services' pods (`SHOAL_LOG_FORMAT`)."),
        Env("SHOAL_OPERATOR_POD_LOG_FORMAT", OPERATOR),
    ] = LogForm.TEXT
    pod_fs_group: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=2**31 - 1,
                description="Default `fsGroup` of pods: the group that owns the volumes they write."
                " Default: none, because OpenShift assigns a group per namespace and rejects others.",
            ),
            Env("SHOAL_OPERATOR_POD_FS_GROUP", OPERATOR),
        ]
        | None
    ) = None
    # What services may do.
    admin_namespaces: Annotated[
        tuple[str, ...],
        Meta(description="Namespaces that may reach the proxies' admin port (metrics, drain). Default: all."),
        Env("SHOAL_OPERATOR_ADMIN_NAMESPACES", OPERATOR, allowed=_TEXTS),
    ] = ()
    policy: Annotated[
        Policy,
        Meta(
            description="Features of the cluster that specs may use ([policy.md](../how-to/policy.md)). Values"
            " that are not set keep their defaults."
        ),
        Env("SHOAL_OPERATOR_POLICY", OPERATOR, allowed="a JSON object, the chart's value `policy`"),
    ] = Policy()
    # Leader election and scope.
    identity: Annotated[
        str,
        Meta(description="Unique identity of this process. Default: host name and a random suffix."),
        Env("SHOAL_OPERATOR_IDENTITY", OPERATOR),
    ] = ""
    namespace: Annotated[
        str, Meta(description="Namespace of the Lease for leader election."), Env("SHOAL_OPERATOR_NAMESPACE", OPERATOR)
    ] = "default"
    watch_namespaces: Annotated[
        tuple[str, ...],
        Meta(description="Namespaces to reconcile. Default: all."),
        Env("SHOAL_OPERATOR_WATCH_NAMESPACES", OPERATOR, allowed=_TEXTS),
    ] = ()
    # Addresses of the operator itself.
    health_listen: (
        Annotated[
            TcpAddress,
            Meta(
                description="Address of `/healthz`, which fails when a watch has stalled or a reconciliation is stuck."
            ),
            Env("SHOAL_OPERATOR_HEALTH_LISTEN", OPERATOR, allowed="HOST:PORT"),
        ]
        | None
    ) = None
    metrics_listen: (
        Annotated[
            TcpAddress,
            Meta(
                description="Address of `/metrics`, `/readyz`, `/v1/fleet` and, for the activator, `/v1/rooms`."
                " `/readyz` fails while all watches fail or services have not been reconciled."
            ),
            Env("SHOAL_OPERATOR_METRICS_LISTEN", OPERATOR, allowed="HOST:PORT"),
        ]
        | None
    ) = None
    # Intervals.
    resync_s: Annotated[
        float,
        Meta(ge=1, le=86400, description="Interval at which every service is reconciled even without a change."),
        Env("SHOAL_OPERATOR_RESYNC_S", OPERATOR),
    ] = 600.0
    follow_interval_s: Annotated[
        float,
        Meta(
            ge=1,
            le=86400,
            description=(
                "Interval at which moving model names (branch, tag, alias) are resolved again, for services with "
                "`model.follow: Rollout`."
            ),
        ),
        Env("SHOAL_OPERATOR_FOLLOW_INTERVAL_S", OPERATOR),
    ] = 300.0
    scrape_interval_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=60,
            description="Interval at which proxies are scraped, for services that scale or have a latency objective.",
        ),
        Env("SHOAL_OPERATOR_SCRAPE_INTERVAL_S", OPERATOR),
    ] = 2.0
    scale_down_window_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86400,
            description=(
                "Window for scaling down: replicas are reduced only to the highest number needed within it. A "
                "manual change of replicas is held for the same time. The interval between two reductions, and "
                "the time without reductions after a load spike, equal it too, up to one minute."
            ),
        ),
        Env("SHOAL_OPERATOR_SCALE_DOWN_WINDOW_S", OPERATOR),
    ] = 300.0
    # Concurrency and upgrades.
    workers: Annotated[
        int,
        Meta(ge=1, le=256, description="Number of services that are reconciled concurrently."),
        Env("SHOAL_OPERATOR_WORKERS", OPERATOR),
    ] = 8
    upgrade_unavailable_services: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description=(
                "Number of services that may be upgraded concurrently to this operator's images and pod template. "
                "0: a service is upgraded only when its spec changes."
            ),
        ),
        Env("SHOAL_OPERATOR_UPGRADE_UNAVAILABLE_SERVICES", OPERATOR),
    ] = 1
    upgrade_window: Annotated[
        str,
        Meta(
            pattern=UPGRADE_WINDOW,
            description="Time window in which upgrades of services may start. Default: any time.",
        ),
        Env(
            "SHOAL_OPERATOR_UPGRADE_WINDOW",
            OPERATOR,
            allowed="days and a time in UTC, as Sat,Sun 02:00-05:00; the days are optional",
        ),
    ] = ""
    # The activator.
    activator_selector: Annotated[
        str,
        Meta(
            description="Labels of the activator's pods in the operator's namespace (`name=value`,"
            " comma-separated). Default: no activator, so `scaling.minReplicas` must be at least 1."
        ),
        Env("SHOAL_OPERATOR_ACTIVATOR_SELECTOR", OPERATOR),
    ] = ""
    activator_first_port: Annotated[
        int,
        Meta(ge=1024, le=65535, description="First of the activator's ports for services."),
        Env("SHOAL_OPERATOR_ACTIVATOR_FIRST_PORT", OPERATOR),
    ] = 20_000
    activator_ports: Annotated[
        int,
        Meta(ge=1, le=60_000, description="Number of the activator's ports: one per service with `minReplicas` 0."),
        Env("SHOAL_OPERATOR_ACTIVATOR_PORTS", OPERATOR),
    ] = 1000

    def __post_init__(self) -> None:
        """Check that the last port exists."""
        if (last := self.activator_first_port + self.activator_ports - 1) > _LAST_PORT:
            first = self.activator_first_port
            what = f"from {first} end at {last}, beyond the last port {_LAST_PORT}. Use fewer, or a lower first port"
            raise FieldFault("activatorPorts", what)


class ActivatorProcess(SettingsSection, frozen=True):
    """Settings of the activator process."""

    operator: Annotated[
        str,
        Meta(
            pattern=r"^https?://[^/]+\Z",
            description="URL of the operator, which provides services, their ports and their ready pods.",
        ),
        Env("SHOAL_ACTIVATOR_OPERATOR", ACTIVATOR, allowed="http://HOST:PORT"),
    ] = "http://127.0.0.1:8082"
    listen_host: Annotated[
        str,
        Meta(description="Address on which each service has a port; `::` is every IPv4 and IPv6 address."),
        Env("SHOAL_ACTIVATOR_LISTEN_HOST", ACTIVATOR),
    ] = "127.0.0.1"
    admin_listen: Annotated[
        TcpAddress,
        Meta(description="Address of `/healthz`, `/readyz`, `/metrics` and, for the operator, `/v1/waiting`."),
        Env("SHOAL_ACTIVATOR_ADMIN_LISTEN", ACTIVATOR, allowed="HOST:PORT"),
    ] = TcpAddress("127.0.0.1", 9090)
    max_requests: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Maximum number of held requests."),
        Env("SHOAL_ACTIVATOR_MAX_REQUESTS", ACTIVATOR),
    ] = 4096
    max_bytes: Annotated[
        int,
        Meta(ge=KIB, le=TIB, description="Maximum size of the bodies of held requests."),
        Env("SHOAL_ACTIVATOR_MAX_BYTES", ACTIVATOR),
    ] = 256 * MIB
    service_max_requests: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Maximum number of held requests per service."),
        Env("SHOAL_ACTIVATOR_SERVICE_MAX_REQUESTS", ACTIVATOR),
    ] = 1024
    service_max_bytes: Annotated[
        int,
        Meta(ge=KIB, le=TIB, description="Maximum size of the bodies of held requests per service."),
        Env("SHOAL_ACTIVATOR_SERVICE_MAX_BYTES", ACTIVATOR),
    ] = 128 * MIB
    max_services: Annotated[
        int,
        Meta(
            ge=1, le=60_000, description="Maximum number of services with a port. The chart sets the number of ports."
        ),
        Env("SHOAL_ACTIVATOR_MAX_SERVICES", ACTIVATOR),
    ] = 1000
    drain_delay_s: Annotated[
        float,
        Meta(
            ge=0,
            le=600,
            description="On SIGTERM, time to keep accepting requests, until load balancers have removed the pod.",
        ),
        Env("SHOAL_ACTIVATOR_DRAIN_DELAY_S", ACTIVATOR),
    ] = 5.0
    drain_timeout_s: Annotated[
        float,
        Meta(ge=0, le=3600, description="After the drain delay, maximum time that held requests wait for a pod."),
        Env("SHOAL_ACTIVATOR_DRAIN_TIMEOUT_S", ACTIVATOR),
    ] = 60.0


class BatchProcess(SettingsSection, frozen=True):
    """Settings of the batch process."""

    # Which part of the work this process does.
    worker: Annotated[
        int, Meta(ge=0, le=100_000, description="Index of this worker."), Env("SHOAL_BATCH_WORKER", BATCH)
    ] = 0
    workers: Annotated[
        int,
        Meta(ge=1, le=100_000, description="Number of workers that share the shards."),
        Env("SHOAL_BATCH_WORKERS", BATCH),
    ] = 1
    run: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9-]*\Z",
            max_length=63,
            description="Identifier of the run, in the leases of its workers.",
        ),
        Env("SHOAL_BATCH_RUN", BATCH, allowed="letters, digits and '-'"),
    ] = ""
    # What computes.
    engines: Annotated[
        int,
        Meta(ge=1, le=1024, description="Number of engine processes, each with its own copy of the model."),
        Env("SHOAL_BATCH_ENGINES", BATCH),
    ] = 1
    engine: Annotated[
        str,
        Meta(description="Command of an engine process to use instead of the runtime's."),
        Env("SHOAL_BATCH_ENGINE", BATCH, allowed="a command"),
    ] = ""
    ahead_bytes: Annotated[
        int,
        Meta(ge=MIB, le=TIB, description="Size limit of rows read ahead, and of results that are not yet written."),
        Env("SHOAL_BATCH_AHEAD_BYTES", BATCH),
    ] = 256 * MIB
    progress_listen: (
        Annotated[
            TcpAddress,
            Meta(description="Address of `GET /v1/progress`. Default: none."),
            Env("SHOAL_BATCH_PROGRESS_LISTEN", BATCH, allowed="HOST:PORT"),
        ]
        | None
    ) = None
