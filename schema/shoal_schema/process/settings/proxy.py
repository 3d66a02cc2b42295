"""Settings of the proxy process."""

from typing import Annotated

from msgspec import Meta

from shoal_schema.fields.addresses import Address, TcpAddress
from shoal_schema.fields.declaring import (
    KIB,
    MIB,
    NAME,
    NAME_IN_WORDS,
    PROXY,
    TIB,
    Env,
    SettingsSection,
)
from shoal_schema.interfaces.instances import MAX_INSTANCES
from shoal_schema.interfaces.stay import MAX_S as MAX_STAY_S
from shoal_schema.process.settings.descriptions import ADDRESS, HEAD, HEAD_TIME
from shoal_schema.resource.graph import GraphSpec

PEER = r"^(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}\Z"


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
        Env("SHOAL_PROXY_LISTEN", PROXY, allowed=ADDRESS),
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
        Meta(description="Address of the V2 server that runs the model: Shoal's runtime or another one."),
        Env("SHOAL_PROXY_RUNTIME", PROXY, allowed="unix:PATH or http://HOST:PORT"),
    ] = Address(path="/run/shoal/runtime.sock")
    runtime_instances: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_INSTANCES,
            description="Runtimes of the model. The first one listens at `SHOAL_PROXY_RUNTIME`, the others at its path"
            " with the suffix `.1`, `.2`, ..., or at the following ports.",
        ),
        Env("SHOAL_PROXY_RUNTIME_INSTANCES", PROXY),
    ] = 1
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
        Meta(description="Namespace of the graph, which distinguishes graphs of the same name."),
        Env("SHOAL_PROXY_NAMESPACE", PROXY, allowed="text"),
    ] = ""
    composer_dir: Annotated[
        str,
        Meta(description="Directory of modules for a graph's `composer.importPath`, searched last."),
        Env("SHOAL_PROXY_COMPOSER_DIR", PROXY, allowed="a directory"),
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
    # Rollouts.
    candidates: Annotated[
        tuple[Annotated[str, Meta(pattern=PEER)], ...],
        Meta(
            description="Addresses of the candidate's pods, to which a rollout sends copies of batches and a share of"
            " the requests. A host name stands for all of its addresses, and is resolved only during a rollout."
        ),
        Env("SHOAL_PROXY_CANDIDATES", PROXY, allowed="comma-separated HOST:PORT"),
    ] = ()
    revision: Annotated[
        str,
        Meta(
            pattern=r"^[0-9a-z-]{0,63}\Z",
            description="Revision of this pod's model, runtime and batching, for `x-shoal-revision`.",
        ),
        Env("SHOAL_PROXY_REVISION", PROXY, allowed="up to 63 digits, lower-case letters and hyphens"),
    ] = ""
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
    webhook_keys: (
        Annotated[
            str,
            Meta(
                description="Keys that sign webhooks: a directory with a file per key, such as a mounted Secret."
                " Checked for changes every second."
            ),
            Env("SHOAL_PROXY_WEBHOOK_KEYS", PROXY, allowed="a directory"),
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
        int, Meta(ge=KIB, le=16 * MIB, description=HEAD), Env("SHOAL_PROXY_MAX_HEAD_BYTES", PROXY)
    ] = 32 * KIB
    head_timeout_s: Annotated[
        float, Meta(gt=0, le=3600, description=HEAD_TIME), Env("SHOAL_PROXY_HEAD_TIMEOUT_S", PROXY)
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
