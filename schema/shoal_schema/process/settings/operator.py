"""Settings of the operator process."""

from typing import Annotated

from msgspec import Meta

from shoal_schema.fields.addresses import TcpAddress
from shoal_schema.fields.declaring import (
    OPERATOR,
    Env,
    FieldFault,
    SettingsSection,
)
from shoal_schema.process.settings.log import LogForm
from shoal_schema.resource.policy import Policy
from shoal_schema.version import VERSION

_LAST_PORT = 65535
_DAY, _TIME = "(Mon|Tue|Wed|Thu|Fri|Sat|Sun)", "([01][0-9]|2[0-3]):[0-5][0-9]"
UPGRADE_WINDOW = rf"^(({_DAY}(,{_DAY})* )?{_TIME}-{_TIME}( UTC)?)?\Z"
_TEXTS = "comma-separated names"


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
                "Address that proxies listen on: `::` is every IPv4 and IPv6 address; `$(POD_IP)` is the address "
                "of the pod, for pods that share one network."
            )
        ),
        Env("SHOAL_OPERATOR_LISTEN_HOST", OPERATOR),
    ] = "::"
    service_url: Annotated[
        str,
        Meta(
            description="URL in the status of a service without a route; `$(NAME)`, `$(NAMESPACE)` and"
            " `$(CLUSTER_IP)` are those of its Service."
        ),
        Env("SHOAL_OPERATOR_SERVICE_URL", OPERATOR),
    ] = "http://$(NAME).$(NAMESPACE).svc"
    peers: Annotated[
        bool,
        Meta(
            description="Whether the operator creates a headless Service `NAME-peers`, by which replicas find their"
            " peers to forward requests that would be late. Requires the cluster's DNS."
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
                " Leave it unset on OpenShift, which assigns a group per namespace and rejects others.",
            ),
            Env("SHOAL_OPERATOR_POD_FS_GROUP", OPERATOR),
        ]
        | None
    ) = None
    # What services may do.
    admin_namespaces: Annotated[
        tuple[str, ...],
        Meta(description="Namespaces that may reach the proxies' admin port (metrics, drain). If unset: all."),
        Env("SHOAL_OPERATOR_ADMIN_NAMESPACES", OPERATOR, allowed=_TEXTS),
    ] = ()
    policy: Annotated[
        Policy,
        Meta(
            description="Features of the cluster that specs may use ([policy](policy.md)). Values"
            " that are not set keep their defaults."
        ),
        Env("SHOAL_OPERATOR_POLICY", OPERATOR, allowed="a JSON object, the chart's value `policy`"),
    ] = Policy()
    # Leader election and scope.
    identity: Annotated[
        str,
        Meta(description="Unique identity of this process. If unset: host name and a random suffix."),
        Env("SHOAL_OPERATOR_IDENTITY", OPERATOR),
    ] = ""
    namespace: Annotated[
        str, Meta(description="Namespace of the Lease for leader election."), Env("SHOAL_OPERATOR_NAMESPACE", OPERATOR)
    ] = "default"
    watch_namespaces: Annotated[
        tuple[str, ...],
        Meta(description="Namespaces to reconcile. If unset: all."),
        Env("SHOAL_OPERATOR_WATCH_NAMESPACES", OPERATOR, allowed=_TEXTS),
    ] = ()
    # Addresses of the operator itself.
    health_listen: (
        Annotated[
            TcpAddress,
            Meta(description="Address of `/healthz`, which fails when a watch or a reconciliation makes no progress."),
            Env("SHOAL_OPERATOR_HEALTH_LISTEN", OPERATOR, allowed="HOST:PORT"),
        ]
        | None
    ) = None
    metrics_listen: (
        Annotated[
            TcpAddress,
            Meta(description="Address of `/metrics`, `/readyz` and the [operator API](operator-api.md)."),
            Env("SHOAL_OPERATOR_METRICS_LISTEN", OPERATOR, allowed="HOST:PORT"),
        ]
        | None
    ) = None
    # Intervals.
    resync_s: Annotated[
        float,
        Meta(ge=1, le=86400, description="Seconds between two reconciliations of a service without changes."),
        Env("SHOAL_OPERATOR_RESYNC_S", OPERATOR),
    ] = 600.0
    follow_interval_s: Annotated[
        float,
        Meta(
            ge=1,
            le=86400,
            description=(
                "Seconds between two resolutions of a moving model name (branch, tag, alias), for services with "
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
            description="Seconds between two scrapes of a proxy, for services that scale or have a latency objective.",
        ),
        Env("SHOAL_OPERATOR_SCRAPE_INTERVAL_S", OPERATOR),
    ] = 2.0
    scale_down_window_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86400,
            description=(
                "Seconds of the window for scaling down: replicas are reduced only to the highest number required "
                "within it. A manual change of replicas is held for the same time. The window, or one minute if it is "
                "longer, is also the interval between reductions, and the time without them after a load spike."
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
            description="Time window in which upgrades of services may start. If unset: any time.",
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
            " comma-separated). If unset: no activator, so `scaling.minReplicas` must be at least 1."
        ),
        Env("SHOAL_OPERATOR_ACTIVATOR_SELECTOR", OPERATOR),
    ] = ""
    activator_first_port: Annotated[
        int,
        Meta(
            ge=1024,
            le=65535,
            description="First port of the activator for services; one port for each service with `minReplicas` 0.",
        ),
        Env("SHOAL_OPERATOR_ACTIVATOR_FIRST_PORT", OPERATOR),
    ] = 20_000
    activator_ports: Annotated[
        int,
        Meta(ge=1, le=60_000, description="Number of ports of the activator for services."),
        Env("SHOAL_OPERATOR_ACTIVATOR_PORTS", OPERATOR),
    ] = 1000

    def __post_init__(self) -> None:
        """Check that the activator's last port is at most 65535."""
        if (last := self.activator_first_port + self.activator_ports - 1) > _LAST_PORT:
            first = self.activator_first_port
            what = f"from {first} end at {last}, beyond the last port {_LAST_PORT}. Use fewer, or a lower first port"
            raise FieldFault("activatorPorts", what)
