"""Asynchronous requests: a request is accepted at once, and its result is fetched later."""

from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.fields.declaring import KIB, MIB, PROXY, TIB, Env, SettingsSection
from shoal_schema.fields.rules import Matches, Not, Rule, requires
from shoal_schema.resource.locations import CREDENTIALS
from shoal_schema.resource.offline import FOLDER, IN_WORDS
from shoal_schema.resource.passthrough import SET, object_name
from shoal_schema.resource.uris import IPV6, PORT

_MAX_TIMEOUT_S = 604_800
_LABEL, _LAST = "[a-z0-9]([-a-z0-9]*[a-z0-9])?", "[a-z]([-a-z0-9]*[a-z0-9])?"
_BYTE = "(0|[1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-5])"
WEBHOOK_HOST = (
    rf"^(\*(\.{_LABEL})+\.{_LAST}|(http://)?(({_LABEL}\.)*{_LAST}|({_BYTE}\.){{3}}{_BYTE}|\[{IPV6}\]))"
    rf"(:{PORT})?\Z"
)
"""A host, a wildcard, or ``http://`` and a host, with an optional port."""


class AsyncStoreSpec(SettingsSection, frozen=True, kw_only=True):
    """Store of accepted requests and their results, which all replicas share."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            Not(Matches("uri", CREDENTIALS)),
            "uri must not hold credentials: put them into the Secret of secretName",
            "uri",
        ),
    )

    uri: Annotated[
        str,
        Meta(
            pattern=FOLDER,
            max_length=2048,
            description=f"Directory of requests and results: {IN_WORDS}. Services of one name need a directory each. A `file://`"
            " directory must be on a volume that all pods share (`pod.volumes`, `proxy.volumeMounts`).",
        ),
        Env("SHOAL_ASYNC_STORE", PROXY, unset="", allowed=IN_WORDS),
    ]
    secret_name: (
        Annotated[
            str,
            object_name(
                "A Secret of the namespace whose entries become environment variables of the proxy:"
                " credentials for the store."
            ),
        ]
        | None
    ) = None


class WebhooksSpec(SettingsSection, frozen=True, kw_only=True):
    """Requests that the proxy sends with finished results, to the URL in `x-shoal-callback`."""

    allowed_hosts: Annotated[
        tuple[Annotated[str, Meta(pattern=WEBHOOK_HOST, max_length=266)], ...],
        Meta(
            min_length=1,
            max_length=64,
            extra_json_schema=SET,
            description="Hosts to which results may be sent, each with `:PORT` unless the port is 443."
            " `*.example.com` matches every host below `example.com`, with public addresses only. `http://HOST` allows"
            " plain HTTP. Loopback and private addresses need an entry without `*`.",
        ),
        Env("SHOAL_ASYNC_WEBHOOK_HOSTS", PROXY, unset=(), allowed="comma-separated hosts"),
    ]
    # Required by a rule of the section above, as a process that reads the environment has no such field.
    secret_name: (
        Annotated[
            str,
            object_name(
                "A Secret of the namespace with the keys that sign webhooks, each `whsec_` and 24 to 64"
                " bytes in base64. Several keys each sign, so that receivers can change theirs; changes apply without a"
                " restart. Required."
            ),
        ]
        | None
    ) = None


class AsynchronousSpec(SettingsSection, frozen=True):
    """Asynchronous requests (`Prefer: respond-async`). Without it, every response contains the result."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        requires("webhooks", "webhooks.secretName", "a receiver must distinguish results from forged requests"),
    )

    # Times.
    timeout_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=_MAX_TIMEOUT_S,
            description="Maximum time from the acceptance of a request to its result. A shorter timeout of the client"
            " takes precedence.",
        ),
        Env(
            "SHOAL_ASYNC_TIMEOUT_S",
            PROXY,
            unset=0,
            reads=Annotated[int, Meta(ge=0, le=_MAX_TIMEOUT_S)],
            allowed=f"0 (no asynchronous requests) to {_MAX_TIMEOUT_S}",
        ),
    ] = 3600
    result_seconds: Annotated[
        int,
        Meta(ge=1, le=2_592_000, description="Time that a result can be fetched, after which it is deleted."),
        Env("SHOAL_ASYNC_RESULT_S", PROXY),
    ] = 3600
    # Limits of one pod.
    max_requests: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Maximum number of requests of a pod that wait, run, or have a result in its memory. Further"
            " requests are rejected with 503 and `Retry-After`.",
        ),
        Env("SHOAL_ASYNC_MAX_REQUESTS", PROXY),
    ] = 1000
    max_bytes: Annotated[
        int,
        Meta(ge=KIB, le=TIB, description="Maximum size of the bodies and results that a pod holds in memory for them."),
        Env("SHOAL_ASYNC_MAX_BYTES", PROXY),
    ] = 256 * MIB
    # Where results go.
    store: AsyncStoreSpec | None = None
    webhooks: WebhooksSpec | None = None
