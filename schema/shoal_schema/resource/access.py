"""Who may call a service, and how much each caller may ask for."""

from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.declaring import PROXY, Env, Rule, Section
from shoal_schema.headers import OWN_HEADERS, OWN_HEADERS_PATTERN
from shoal_schema.resource.passthrough import HEADER_NAME, SET

KEY_NAME = r"^[-._A-Za-z0-9]+\Z"
JWKS_URL = (
    r"^(https://[^@/?#]+(/|\Z)|http://(localhost|127\.0\.0\.1|[-.a-z0-9]+\.svc(\.cluster\.local)?)(:[0-9]+)?(/|\Z))"
)
"""Whoever can change what is fetched signs tokens: plain HTTP stays inside the cluster, or the machine."""
Rates = Annotated[dict[str, Annotated[float, Meta(gt=0, le=1_000_000)]], Meta(max_length=256)]
RowCounts = Annotated[dict[str, Annotated[int, Meta(ge=1, le=1_000_000)]], Meta(max_length=256)]


class ApiKeysSpec(Section, frozen=True):
    """Keys that callers send, as `Authorization: Bearer KEY` or `x-api-key: KEY`."""

    secret_name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=253,
            description="A Secret in the service's namespace: each entry's name is a caller's, each line of it a key,"
            " or `sha256:` and the hash of one. Changes are taken up without a restart.",
        ),
    ]


class GatewayHeaderSpec(Section, frozen=True):
    """A header in which a gateway says for whom it calls."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!self.name.matches('{OWN_HEADERS_PATTERN}')",
            f"name must not be a header of the connection's own: {', '.join(sorted(OWN_HEADERS))}",
            ".name",
        ),
        Rule("self.keys.size() >= 1", "name at least one key, which the gateway sends", ".keys"),
    )

    name: Annotated[
        str,
        Meta(pattern=HEADER_NAME, max_length=128, description="Name of the header (`x-consumer-username`)."),
        Env("SHOAL_ACCESS_HEADER", PROXY, unset="", allowed="a header name"),
    ]
    keys: Annotated[
        tuple[Annotated[str, Meta(pattern=KEY_NAME, max_length=253)], ...],
        Meta(
            max_length=16,
            extra_json_schema=SET,
            description="Names of the keys whose holders are such gateways. The header is believed of them alone, and"
            " they must send it.",
        ),
        Env("SHOAL_ACCESS_HEADER_KEYS", PROXY, unset=(), allowed="comma-separated names of keys"),
    ]


class JwtSpec(Section, frozen=True):
    """Tokens of an OpenID Connect issuer (JWT), sent as `Authorization: Bearer TOKEN`."""

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
            description="Where the issuer's keys are, `jwks_uri` of its discovery document; `https`, or `http` inside"
            " the cluster. They are fetched again every five minutes, and for a token of a key that is not known.",
        ),
        Env("SHOAL_ACCESS_JWT_JWKS_URL", PROXY, unset="", allowed="an https URL"),
    ]
    scope: (
        Annotated[
            str,
            Meta(
                max_length=256,
                description="Required member of the claim `scope` or `scp`; without it 403. Default: none.",
            ),
            Env("SHOAL_ACCESS_JWT_SCOPE", PROXY, allowed="a text"),
        ]
        | None
    ) = None
    caller_claim: Annotated[
        str,
        Meta(min_length=1, max_length=128, description="The claim that names the caller."),
        Env("SHOAL_ACCESS_JWT_CALLER_CLAIM", PROXY),
    ] = "sub"


class LimitsSpec(Section, frozen=True):
    """How much a caller may ask of one pod, by name; `*` is each of the others. More is answered with 429."""

    rows_per_second: (
        Annotated[
            Rates,
            Meta(description="Rows a second; those of one second may come at once."),
            Env("SHOAL_ACCESS_ROWS_PER_SECOND", PROXY, allowed='a JSON object of rates, {"team-a": 100, "*": 10}'),
        ]
        | None
    ) = None
    rows_in_flight: (
        Annotated[
            RowCounts,
            Meta(description="Rows that wait and run at a time; a larger request goes when it is the only one."),
            Env("SHOAL_ACCESS_ROWS_IN_FLIGHT", PROXY, allowed='a JSON object of rows, {"team-a": 64, "*": 8}'),
        ]
        | None
    ) = None


class AccessSpec(Section, frozen=True):
    """Who may call. Leave it out where everybody may who reaches the service."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("has(self.apiKeys) || has(self.jwt)", "give apiKeys, jwt or both: else nobody could call", ""),
        Rule(
            "!has(self.header) || has(self.apiKeys)",
            "header needs apiKeys: a gateway is known by the key that it sends",
            ".header",
        ),
    )

    api_keys: ApiKeysSpec | None = None
    header: GatewayHeaderSpec | None = None
    jwt: JwtSpec | None = None
    limits: LimitsSpec | None = None
