"""Authentication of clients and their limits."""

from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.fields.declaring import PROXY, Env, SettingsSection
from shoal_schema.fields.rules import Given, Matches, Not, Rule, requires, some_of
from shoal_schema.interfaces.headers import OWN_HEADERS, OWN_HEADERS_PATTERN
from shoal_schema.resource.passthrough import HEADER_NAME, SET

KEY_NAME = r"^[-._A-Za-z0-9]+\Z"
JWKS_URL = (
    r"^(https://[^@/?#]+(/|\Z)|http://(localhost|127\.0\.0\.1|[-.a-z0-9]+\.svc(\.cluster\.local)?)(:[0-9]+)?(/|\Z))"
)
"""HTTPS, or plain HTTP inside the cluster or the machine: a forged key set would let anybody sign tokens."""
Rates = Annotated[dict[str, Annotated[float, Meta(gt=0, le=1_000_000)]], Meta(max_length=256)]
RowCounts = Annotated[dict[str, Annotated[int, Meta(ge=1, le=1_000_000)]], Meta(max_length=256)]


class ApiKeysSpec(SettingsSection, frozen=True):
    """Keys that clients send as `Authorization: Bearer KEY` or `x-api-key: KEY`."""

    secret_name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=253,
            description="A Secret of the namespace. Each entry is named after a client and holds one key per line, in"
            " plain text or as `sha256:` and its hash; changes apply without a restart.",
        ),
    ]


class GatewayHeaderSpec(SettingsSection, frozen=True):
    """A header in which a trusted gateway names the client."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            Not(Matches("name", OWN_HEADERS_PATTERN)),
            f"name must not be a header that the connection sets: {', '.join(sorted(OWN_HEADERS))}",
            "name",
        ),
        Rule(Given("keys"), "keys must name at least one key of a gateway", "keys"),
    )

    name: Annotated[
        str,
        Meta(
            pattern=HEADER_NAME,
            max_length=128,
            description="Header that has the client's name, such as `x-consumer-username`.",
        ),
        Env("SHOAL_ACCESS_HEADER", PROXY, unset="", allowed="a header name"),
    ]
    keys: Annotated[
        tuple[Annotated[str, Meta(pattern=KEY_NAME, max_length=253)], ...],
        Meta(
            max_length=16,
            extra_json_schema=SET,
            description=(
                "Names of API keys that belong to gateways. Requests with these keys must have the header; it is "
                "ignored in all other requests."
            ),
        ),
        Env("SHOAL_ACCESS_HEADER_KEYS", PROXY, unset=(), allowed="comma-separated names of keys"),
    ]


class JwtSpec(SettingsSection, frozen=True):
    """Tokens of an OpenID Connect issuer (JWT), sent as `Authorization: Bearer TOKEN`."""

    # Claims that every token must have.
    issuer: Annotated[
        str,
        Meta(min_length=1, max_length=1024, description="Required value of the claim `iss`."),
        Env("SHOAL_ACCESS_JWT_ISSUER", PROXY, unset="", allowed="a text"),
    ]
    audience: Annotated[
        str,
        Meta(min_length=1, max_length=1024, description="Required member of the claim `aud`."),
        Env("SHOAL_ACCESS_JWT_AUDIENCE", PROXY, unset="", allowed="a text"),
    ]
    jwks_url: Annotated[
        str,
        Meta(
            pattern=JWKS_URL,
            max_length=2048,
            description="URL of the issuer's key set: `jwks_uri` of its discovery document, `https`, or `http` inside"
            " the cluster. The key set is fetched every five minutes, and when a token names an unknown key.",
        ),
        Env("SHOAL_ACCESS_JWT_JWKS_URL", PROXY, unset="", allowed="an https URL"),
    ]
    scope: (
        Annotated[
            str,
            Meta(
                max_length=256,
                description="Required member of the claim `scope` or `scp`; a token without it gets 403. Default:"
                " none.",
            ),
            Env("SHOAL_ACCESS_JWT_SCOPE", PROXY, allowed="a text"),
        ]
        | None
    ) = None
    caller_claim: Annotated[
        str,
        Meta(min_length=1, max_length=128, description="Claim of the token that has the client's name."),
        Env("SHOAL_ACCESS_JWT_CALLER_CLAIM", PROXY),
    ] = "sub"


class LimitsSpec(SettingsSection, frozen=True):
    """Limits per client and pod; `*` applies to every client without an entry. Requests beyond them get 429."""

    rows_per_second: (
        Annotated[
            Rates,
            Meta(
                description="Rows per second by client's name; `*` applies to every other client. A burst may hold the"
                " rows of one second."
            ),
            Env("SHOAL_ACCESS_ROWS_PER_SECOND", PROXY, allowed='a JSON object of rates, {"team-a": 100, "*": 10}'),
        ]
        | None
    ) = None
    rows_in_flight: (
        Annotated[
            RowCounts,
            Meta(
                description=(
                    "Rows queued and running at a time. A larger request is admitted if the client has no other "
                    "rows in flight."
                )
            ),
            Env("SHOAL_ACCESS_ROWS_IN_FLIGHT", PROXY, allowed='a JSON object of rows, {"team-a": 64, "*": 8}'),
        ]
        | None
    ) = None


class AccessSpec(SettingsSection, frozen=True):
    """Authentication of clients. Without it every client that reaches the service is served."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        some_of(("apiKeys", "jwt"), "access", "without them no client can authenticate"),
        requires("header", "apiKeys", "a gateway authenticates with its key"),
    )

    # How clients authenticate.
    api_keys: ApiKeysSpec | None = None
    header: GatewayHeaderSpec | None = None
    jwt: JwtSpec | None = None
    # What they may use.
    limits: LimitsSpec | None = None
