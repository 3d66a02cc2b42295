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
        """Check that the activator's last port is at most 65535."""
        if (last := self.activator_first_port + self.activator_ports - 1) > _LAST_PORT:
            first = self.activator_first_port
            what = f"from {first} end at {last}, beyond the last port {_LAST_PORT}. Use fewer, or a lower first port"
            raise FieldFault("activatorPorts", what)
