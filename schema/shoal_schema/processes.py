"""Settings that only the environment holds: addresses, and bounds that hardly anybody changes."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from shoal_schema.addresses import Address, TcpAddress
from shoal_schema.declaring import (
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
    WAITING,
    Env,
    FieldFault,
    Section,
)
from shoal_schema.policy import Policy
from shoal_schema.resource.graph import GraphSpec
from shoal_schema.stay import MAX_S as MAX_STAY_S
from shoal_schema.version import VERSION

_ADDRESS = "HOST:PORT or unix:PATH"
SIBLING = r"^(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}\Z"
_LAST_PORT = 65535
_DAY, _TIME = "(Mon|Tue|Wed|Thu|Fri|Sat|Sun)", "([01][0-9]|2[0-3]):[0-5][0-9]"
UPGRADE_WINDOW = rf"^(({_DAY}(,{_DAY})* )?{_TIME}-{_TIME}( UTC)?)?\Z"
_TEXTS = "comma-separated names"
_HEAD = "Longest request line and headers, each header counted with 32 bytes more."
_HEAD_TIME = "How long a head may take to arrive, from the connection's start or from its own first byte."


class Level(StrEnum):
    """How important a line of the log must be."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


LOG_FORMAT = "SHOAL_LOG_FORMAT"


class LogForm(StrEnum):
    """How a line of the log is written."""

    TEXT = "text"
    JSON = "json"


class Metadata(Section, frozen=True):
    """Who a service is."""

    name: (
        Annotated[
            str,
            Meta(pattern=NAME, max_length=253, description="The model's name in callers' paths, and at the runtime."),
            Env("SHOAL_MODEL_NAME", PROXY, RUNTIME, MODEL, allowed=NAME_IN_WORDS),
        ]
        | None
    ) = None


class LogSettings(Section, frozen=True):
    """What every process writes down."""

    level: Annotated[
        Level,
        Meta(description="What is less important is not logged."),
        Env("SHOAL_LOG_LEVEL", PROXY, RUNTIME, MODEL, OPERATOR, WAITING, BATCH),
    ] = Level.INFO
    form: Annotated[
        LogForm,
        Meta(description="`json` is one object a line, for programs ([logs](../reference/logs.md))."),
        Env(LOG_FORMAT, PROXY, RUNTIME, MODEL, OPERATOR, WAITING, BATCH),
    ] = LogForm.TEXT


class ProxyProcess(Section, frozen=True):
    """The batching proxy as a process: where it listens, and what a connection may do."""

    instance: (
        Annotated[
            str,
            Meta(
                pattern=NAME,
                description="What the metrics call this replica, in the header `x-shoal-instance`; the operator sets"
                " the pod's uid, and takes no metrics that say another.",
            ),
            Env("SHOAL_PROXY_INSTANCE", PROXY, allowed=NAME_IN_WORDS),
        ]
        | None
    ) = None
    listen: Annotated[
        Address,
        Meta(
            description="Where callers connect. Brackets around an address are needed for IPv6; `[::]` is every"
            " address of both families; port 0 picks one."
        ),
        Env("SHOAL_PROXY_LISTEN", PROXY, allowed=_ADDRESS),
    ] = Address("127.0.0.1", 8080)
    admin_listen: Annotated[
        TcpAddress,
        Meta(description="Health, metrics and drain."),
        Env("SHOAL_PROXY_ADMIN_LISTEN", PROXY, allowed="HOST:PORT"),
    ] = TcpAddress("127.0.0.1", 9090)
    admin_hosts: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^(\*|[A-Za-z0-9._-]+)\Z")], ...],
        Meta(
            description="Host names, or `*` for any, that the admin port answers to besides addresses, names without a"
            " dot and names under `localhost`, `svc`, `cluster.local` and `internal`."
        ),
        Env("SHOAL_PROXY_ADMIN_HOSTS", PROXY, allowed="comma-separated host names or *"),
    ] = ()
    runtime: Annotated[
        Address,
        Meta(description="The V2 server that runs the model, ours or a foreign one."),
        Env("SHOAL_PROXY_RUNTIME", PROXY, allowed="unix:PATH or http://HOST:PORT"),
    ] = Address(path="/run/shoal/runtime.sock")
    graph: (
        Annotated[
            GraphSpec,
            Meta(
                description="What an `InferenceGraph` asks for, each step with its `url`: the proxy runs it in place of"
                " a runtime."
            ),
            Env("SHOAL_PROXY_GRAPH", PROXY, allowed="a JSON object"),
        ]
        | None
    ) = None
    namespace: Annotated[
        str,
        Meta(description="Of a graph: two of one name, in two namespaces, may call one another."),
        Env("SHOAL_PROXY_NAMESPACE", PROXY, allowed="text"),
    ] = ""
    composer_dir: Annotated[
        str,
        Meta(description="Where modules of a graph's `composer.importPath` are looked for after all others."),
        Env("SHOAL_PROXY_COMPOSER_DIR", PROXY, allowed="a folder"),
    ] = ""
    replacement_timeout_s: Annotated[
        float,
        Meta(
            ge=0,
            le=MAX_STAY_S,
            description="On SIGTERM, how long this replica keeps serving at most while the operator finds no other"
            " replica ready; 0: there is no operator.",
        ),
        Env("SHOAL_PROXY_REPLACEMENT_TIMEOUT_S", PROXY),
    ] = 0.0
    siblings: Annotated[
        tuple[Annotated[str, Meta(pattern=SIBLING)], ...],
        Meta(
            description="Where other replicas of the model take requests; of a name, every address that it has, looked"
            " up again every few seconds. Who would be late here gets a second chance there. The operator names a"
            " headless Service; this replica itself may be among them."
        ),
        Env("SHOAL_PROXY_SIBLINGS", PROXY, allowed="comma-separated HOST:PORT"),
    ] = ()
    tls_certificate: Annotated[
        str,
        Meta(
            description="File of the certificate that callers are shown, with those between it and its authority, PEM:"
            " the port then speaks TLS alone, gRPC's too. It is read again when it changes."
        ),
        Env("SHOAL_PROXY_TLS_CERTIFICATE", PROXY, allowed="a file"),
    ] = ""
    tls_key: Annotated[
        str,
        Meta(description="File of its key, PEM without a password."),
        Env("SHOAL_PROXY_TLS_KEY", PROXY, allowed="a file"),
    ] = ""
    tls_client_ca: Annotated[
        str,
        Meta(
            description="File of authorities, PEM: callers need a certificate of one of them (mutual TLS); else they"
            " need none."
        ),
        Env("SHOAL_PROXY_TLS_CLIENT_CA", PROXY, allowed="a file"),
    ] = ""
    api_keys: (
        Annotated[
            str,
            Meta(
                description="Where the keys of callers are: a folder with a file for each name, as Kubernetes mounts a"
                " Secret, or a file of `NAME=KEY` lines. Looked at every second."
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
            description="Where an input has no buckets: how many times its own size a row may be padded to for others"
            " in its batch; rows of up to 128 elements always share.",
        ),
        Env("SHOAL_BATCHING_PADDING_FACTOR", PROXY),
    ] = 4.0
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
            description="How long a body may take that comes more slowly than `SHOAL_PROXY_MIN_BYTES_PER_S`.",
        ),
        Env("SHOAL_PROXY_BODY_TIMEOUT_S", PROXY),
    ] = 60.0
    write_timeout_s: Annotated[
        float,
        Meta(gt=0, le=3600, description="How long an answer may wait that is taken more slowly than that."),
        Env("SHOAL_PROXY_WRITE_TIMEOUT_S", PROXY),
    ] = 60.0
    min_bytes_per_s: Annotated[
        int,
        Meta(
            ge=1,
            le=TIB,
            description="Bodies and answers that keep moving at this rate, over each stretch of those two times, may"
            " take as long as it takes.",
        ),
        Env("SHOAL_PROXY_MIN_BYTES_PER_S", PROXY),
    ] = 16 * KIB
    max_unsent_bytes: Annotated[
        int,
        Meta(
            ge=MIB,
            le=TIB,
            description="Responses that clients have not read, in all. Beyond it no batch is sent and no result is"
            " encoded, and clients that would take longer than `SHOAL_PROXY_WRITE_TIMEOUT_S` for the rest of their"
            " response are cut off, the slowest first.",
        ),
        Env("SHOAL_PROXY_MAX_UNSENT_BYTES", PROXY),
    ] = 256 * MIB
    # Longer than any load balancer's own: the side that reuses a connection must be the one that closes it.
    idle_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="How long a connection is kept between requests; longer than any load balancer's own.",
        ),
        Env("SHOAL_PROXY_IDLE_TIMEOUT_S", PROXY),
    ] = 620.0
    connection_age_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86400,
            description="After so long, or down to half of it by chance, an answer asks its caller to connect anew"
            " (`Connection: close`), so that new replicas get their share; 0 means never.",
        ),
        Env("SHOAL_PROXY_CONNECTION_AGE_S", PROXY),
    ] = 60.0
    max_connections: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Callers' connections; 0 means 10,000, or what the limit of open files allows.",
        ),
        Env("SHOAL_PROXY_MAX_CONNECTIONS", PROXY),
    ] = 0
    max_connections_per_address: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Connections of one address; 0 means any number: behind an ingress all callers have one.",
        ),
        Env("SHOAL_PROXY_MAX_CONNECTIONS_PER_ADDRESS", PROXY),
    ] = 0
    access_log_percent: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            description="Of how many inference requests in a hundred, chosen by chance, the log has a line when they"
            " are answered; 0 means none ([logs](../reference/logs.md)).",
        ),
        Env("SHOAL_PROXY_ACCESS_LOG_PERCENT", PROXY),
    ] = 0.0


class RuntimeProcess(Section, frozen=True):
    """The model runtime as a process: where it listens, and what loading and connections may take."""

    listen: Annotated[
        Address, Meta(description="Where to listen."), Env("SHOAL_RUNTIME_LISTEN", RUNTIME, allowed=_ADDRESS)
    ] = Address(path="/run/shoal/runtime.sock")
    cache_dir: (
        Annotated[
            str,
            Meta(description="Where downloads are kept; default: the user's cache folder + `/shoal`."),
            Env("SHOAL_MODEL_CACHE_DIR", RUNTIME, MODEL, allowed="a directory"),
        ]
        | None
    ) = None
    model_ca_bundle: Annotated[
        str,
        Meta(
            description="File of authorities, PEM, that are trusted besides the usual ones where a model or rows are"
            " fetched. So are those that `AWS_CA_BUNDLE`, `REQUESTS_CA_BUNDLE` and `CURL_CA_BUNDLE` name;"
            " `SSL_CERT_FILE` and `SSL_CERT_DIR` replace the usual ones."
        ),
        Env("SHOAL_MODEL_CA_BUNDLE", RUNTIME, MODEL, allowed="a file"),
    ] = ""
    model_max_bytes: Annotated[
        int,
        Meta(ge=MIB, le=1024 * TIB, description="Of a download, and of all that an archive holds."),
        Env("SHOAL_MODEL_MAX_BYTES", RUNTIME, MODEL),
    ] = 128 * GIB
    model_max_files: Annotated[
        int,
        Meta(ge=1, le=10_000_000, description="Files and folders in an archive."),
        Env("SHOAL_MODEL_MAX_FILES", RUNTIME, MODEL),
    ] = 100_000
    model_max_ratio: Annotated[
        int,
        Meta(ge=1, le=100_000, description="Bytes unpacked for each byte of an archive, from 64 MiB on."),
        Env("SHOAL_MODEL_MAX_RATIO", RUNTIME, MODEL),
    ] = 100
    fetch_timeout_s: Annotated[
        float,
        Meta(gt=0, le=86400, description="Download, check and unpack the model within it, else exit 3."),
        Env("SHOAL_MODEL_FETCH_TIMEOUT_S", RUNTIME, MODEL),
    ] = 3600.0
    model_fetched: Annotated[
        bool,
        Meta(
            description="An init container has fetched the model into the cache: it is taken from there and nobody is"
            " asked, so no credentials are needed."
        ),
        Env("SHOAL_MODEL_FETCHED", RUNTIME),
    ] = False
    load_timeout_s: Annotated[
        float,
        Meta(gt=0, le=86400, description="Import, load and warm the model within it, else exit 3."),
        Env("SHOAL_MODEL_LOAD_TIMEOUT_S", RUNTIME),
    ] = 1800.0
    max_body_bytes: Annotated[
        int, Meta(ge=KIB, le=TIB, description="Longest infer body."), Env("SHOAL_RUNTIME_MAX_BODY_BYTES", RUNTIME)
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
            description="For a body or an answer that moves more slowly than `SHOAL_RUNTIME_MIN_BYTES_PER_S`.",
        ),
        Env("SHOAL_RUNTIME_TRANSFER_TIMEOUT_S", RUNTIME),
    ] = 60.0
    min_bytes_per_s: Annotated[
        int,
        Meta(ge=1, le=TIB, description="At this rate bodies and answers may move for as long as it takes."),
        Env("SHOAL_RUNTIME_MIN_BYTES_PER_S", RUNTIME),
    ] = 16 * KIB
    shutdown_timeout_s: Annotated[
        float,
        Meta(ge=0, le=3600, description="On SIGTERM, how long to wait for open connections."),
        Env("SHOAL_RUNTIME_SHUTDOWN_TIMEOUT_S", RUNTIME),
    ] = 60.0


class OperatorProcess(Section, frozen=True):
    """The operator as a process."""

    proxy_image: Annotated[
        str,
        Meta(description="The proxy's image of services that name none."),
        Env("SHOAL_OPERATOR_PROXY_IMAGE", OPERATOR),
    ] = f"shoal/proxy:{VERSION}"
    runtime_image: Annotated[
        str,
        Meta(description="The runtime's image of services that name none."),
        Env("SHOAL_OPERATOR_RUNTIME_IMAGE", OPERATOR),
    ] = f"shoal/runtime:{VERSION}"
    listen_host: Annotated[
        str,
        Meta(
            description="The address that proxies listen at: `::` is every address of either family, `$(POD_IP)` the"
            " pod's own, where pods share one network."
        ),
        Env("SHOAL_OPERATOR_LISTEN_HOST", OPERATOR),
    ] = "::"
    service_url: Annotated[
        str,
        Meta(
            description="Where callers reach a Service without a route; `$(NAME)`, `$(NAMESPACE)` and `$(CLUSTER_IP)`"
            " stand for the Service's own."
        ),
        Env("SHOAL_OPERATOR_SERVICE_URL", OPERATOR),
    ] = "http://$(NAME).$(NAMESPACE).svc"
    siblings: Annotated[
        bool,
        Meta(
            description="Replicas find one another by a headless Service, `NAME-siblings`, and hand over who would be"
            " late; needs the cluster's DNS."
        ),
        Env("SHOAL_OPERATOR_SIBLINGS", OPERATOR),
    ] = True
    pod_log_format: Annotated[
        LogForm,
        Meta(description="`SHOAL_LOG_FORMAT` of the services' pods."),
        Env("SHOAL_OPERATOR_POD_LOG_FORMAT", OPERATOR),
    ] = LogForm.TEXT
    pod_fs_group: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=2**31 - 1,
                description="`fsGroup` of the services' pods whose spec names none: the group that owns volumes which"
                " pods write. None by default: OpenShift sets a group of the namespace, and admits no other.",
            ),
            Env("SHOAL_OPERATOR_POD_FS_GROUP", OPERATOR),
        ]
        | None
    ) = None
    admin_namespaces: Annotated[
        tuple[str, ...],
        Meta(description="Namespaces that may reach the proxies' admin port (metrics, drain); none means all may."),
        Env("SHOAL_OPERATOR_ADMIN_NAMESPACES", OPERATOR, allowed=_TEXTS),
    ] = ()
    policy: Annotated[
        Policy,
        Meta(
            description="What services may ask of the cluster"
            " ([policy.md](../how-to/policy.md)); what is not given is at"
            " its default."
        ),
        Env("SHOAL_OPERATOR_POLICY", OPERATOR, allowed="a JSON object, the chart's value `policy`"),
    ] = Policy()
    identity: Annotated[
        str,
        Meta(description="This process among several, unique; default: host name and a random suffix."),
        Env("SHOAL_OPERATOR_IDENTITY", OPERATOR),
    ] = ""
    namespace: Annotated[str, Meta(description="Where the Lease lies."), Env("SHOAL_OPERATOR_NAMESPACE", OPERATOR)] = (
        "default"
    )
    watch_namespaces: Annotated[
        tuple[str, ...],
        Meta(description="Serve only these; none means the whole cluster."),
        Env("SHOAL_OPERATOR_WATCH_NAMESPACES", OPERATOR, allowed=_TEXTS),
    ] = ()
    health_listen: (
        Annotated[
            TcpAddress,
            Meta(description="Of `/healthz`, which fails when a watch has stalled or a look does not end."),
            Env("SHOAL_OPERATOR_HEALTH_LISTEN", OPERATOR, allowed="HOST:PORT"),
        ]
        | None
    ) = None
    metrics_listen: (
        Annotated[
            TcpAddress,
            Meta(
                description="Of `/metrics`, of `/readyz`, which says no while no watch brings anything or services"
                " have not been looked at, of `/v1/rooms`, which waiting rooms ask, and of `/v1/fleet`."
            ),
            Env("SHOAL_OPERATOR_METRICS_LISTEN", OPERATOR, allowed="HOST:PORT"),
        ]
        | None
    ) = None
    resync_s: Annotated[
        float,
        Meta(ge=1, le=86400, description="Look at every service again after this long, though nothing was heard."),
        Env("SHOAL_OPERATOR_RESYNC_S", OPERATOR),
    ] = 600.0
    follow_interval_s: Annotated[
        float,
        Meta(
            ge=1,
            le=86400,
            description="How often a name that moves is resolved again, of services with `model.follow: Rollout`.",
        ),
        Env("SHOAL_OPERATOR_FOLLOW_INTERVAL_S", OPERATOR),
    ] = 300.0
    scrape_interval_s: Annotated[
        float,
        Meta(
            ge=0.1, le=60, description="How often proxies are read, of services that scale or have a latency objective."
        ),
        Env("SHOAL_OPERATOR_SCRAPE_INTERVAL_S", OPERATOR),
    ] = 2.0
    scale_down_window_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86400,
            description="Replicas fall to the highest want of this long; also how long a number set by hand is held,"
            " and, up to a minute, panic and the time between two falls.",
        ),
        Env("SHOAL_OPERATOR_SCALE_DOWN_WINDOW_S", OPERATOR),
    ] = 300.0
    workers: Annotated[
        int,
        Meta(ge=1, le=256, description="Services that are looked at at the same time."),
        Env("SHOAL_OPERATOR_WORKERS", OPERATOR),
    ] = 8
    upgrade_unavailable_services: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Services that may be on their way to this operator's images and pod template at a time; 0:"
            " none by itself, only with a new spec.",
        ),
        Env("SHOAL_OPERATOR_UPGRADE_UNAVAILABLE_SERVICES", OPERATOR),
    ] = 1
    upgrade_window: Annotated[
        str,
        Meta(pattern=UPGRADE_WINDOW, description="When such an upgrade of a service may begin; none: at any time."),
        Env(
            "SHOAL_OPERATOR_UPGRADE_WINDOW",
            OPERATOR,
            allowed="days and a time of UTC, as Sat,Sun 02:00-05:00; the days may be left out",
        ),
    ] = ""
    waiting_selector: Annotated[
        str,
        Meta(
            description="Labels (`name=value`, comma-separated) of the waiting room's pods, in the operator's"
            " namespace; none: there is no waiting room, and `scaling.minReplicas` must be at least 1."
        ),
        Env("SHOAL_OPERATOR_WAITING_SELECTOR", OPERATOR),
    ] = ""
    waiting_first_port: Annotated[
        int,
        Meta(ge=1024, le=65535, description="The first port of the waiting room that a service may be allotted."),
        Env("SHOAL_OPERATOR_WAITING_FIRST_PORT", OPERATOR),
    ] = 20_000
    waiting_ports: Annotated[
        int,
        Meta(ge=1, le=60_000, description="How many such ports there are, one for each service that may sleep."),
        Env("SHOAL_OPERATOR_WAITING_PORTS", OPERATOR),
    ] = 1000

    def __post_init__(self) -> None:
        """Refuse ports that there are not."""
        if (last := self.waiting_first_port + self.waiting_ports - 1) > _LAST_PORT:
            first = self.waiting_first_port
            what = f"from {first} on end at {last}, and ports at {_LAST_PORT}: give fewer, or begin lower"
            raise FieldFault("waitingPorts", what)


class WaitingProcess(Section, frozen=True):
    """The waiting room as a process: where it listens, whom it asks, and how much it holds."""

    operator: Annotated[
        str,
        Meta(
            pattern=r"^https?://[^/]+\Z",
            description="The operator, who tells which services there are, at which ports, and which pods are ready.",
        ),
        Env("SHOAL_WAITING_OPERATOR", WAITING, allowed="http://HOST:PORT"),
    ] = "http://127.0.0.1:8082"
    listen_host: Annotated[
        str,
        Meta(description="The address at which each service has a port: `::` is every address of either family."),
        Env("SHOAL_WAITING_LISTEN_HOST", WAITING),
    ] = "127.0.0.1"
    admin_listen: Annotated[
        TcpAddress,
        Meta(description="Of `/healthz`, `/readyz`, `/metrics`, and of `/v1/waiting`, which the operator reads."),
        Env("SHOAL_WAITING_ADMIN_LISTEN", WAITING, allowed="HOST:PORT"),
    ] = TcpAddress("127.0.0.1", 9090)
    max_requests: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Requests held at a time, of all services."),
        Env("SHOAL_WAITING_MAX_REQUESTS", WAITING),
    ] = 4096
    max_bytes: Annotated[
        int,
        Meta(ge=KIB, le=TIB, description="Bytes of their bodies."),
        Env("SHOAL_WAITING_MAX_BYTES", WAITING),
    ] = 256 * MIB
    service_max_requests: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Requests held of one service."),
        Env("SHOAL_WAITING_SERVICE_MAX_REQUESTS", WAITING),
    ] = 1024
    service_max_bytes: Annotated[
        int,
        Meta(ge=KIB, le=TIB, description="Bytes of their bodies, of one service."),
        Env("SHOAL_WAITING_SERVICE_MAX_BYTES", WAITING),
    ] = 128 * MIB
    max_services: Annotated[
        int,
        Meta(ge=1, le=60_000, description="Services that are given a port; the chart sets as many as there are ports."),
        Env("SHOAL_WAITING_MAX_SERVICES", WAITING),
    ] = 1000
    drain_delay_s: Annotated[
        float,
        Meta(ge=0, le=600, description="On SIGTERM, how long requests are still taken, until load balancers know."),
        Env("SHOAL_WAITING_DRAIN_DELAY_S", WAITING),
    ] = 5.0
    drain_timeout_s: Annotated[
        float,
        Meta(ge=0, le=3600, description="After that, how long what is held may still wait for a pod."),
        Env("SHOAL_WAITING_DRAIN_TIMEOUT_S", WAITING),
    ] = 60.0


class BatchProcess(Section, frozen=True):
    """The batch program as a process: which of several it is, what computes, and how far ahead it reads."""

    worker: Annotated[
        int, Meta(ge=0, le=100_000, description="Which of the workers this one is."), Env("SHOAL_BATCH_WORKER", BATCH)
    ] = 0
    workers: Annotated[
        int,
        Meta(ge=1, le=100_000, description="How many share the shards: each begins with every so-manieth."),
        Env("SHOAL_BATCH_WORKERS", BATCH),
    ] = 1
    run: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9-]*\Z",
            max_length=63,
            description="What the workers of one run have in common, and no others: their leases are told apart by it.",
        ),
        Env("SHOAL_BATCH_RUN", BATCH, allowed="letters, digits and '-'"),
    ] = ""
    engines: Annotated[
        int,
        Meta(ge=1, le=1024, description="Models at work in this process's care, each a process of its own."),
        Env("SHOAL_BATCH_ENGINES", BATCH),
    ] = 1
    engine: Annotated[
        str,
        Meta(description="A program that computes instead of the runtime's own; it is told over its standard input."),
        Env("SHOAL_BATCH_ENGINE", BATCH, allowed="a command"),
    ] = ""
    ahead_bytes: Annotated[
        int,
        Meta(ge=MIB, le=TIB, description="Rows that are read ahead of the model, and answers that wait to be written."),
        Env("SHOAL_BATCH_AHEAD_BYTES", BATCH),
    ] = 256 * MIB
    progress_listen: (
        Annotated[
            TcpAddress,
            Meta(description="Where `GET /v1/progress` tells how far it is; default: nowhere."),
            Env("SHOAL_BATCH_PROGRESS_LISTEN", BATCH, allowed="HOST:PORT"),
        ]
        | None
    ) = None
