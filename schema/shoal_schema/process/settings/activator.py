"""Settings of the activator process."""

from typing import Annotated

from msgspec import Meta

from shoal_schema.fields.addresses import TcpAddress
from shoal_schema.fields.declaring import (
    ACTIVATOR,
    KIB,
    MIB,
    TIB,
    Env,
    SettingsSection,
)


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
