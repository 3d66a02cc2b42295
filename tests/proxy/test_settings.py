import json
from typing import Any

import pytest
from msgspec import structs

from shoal_proxy.settings import Settings
from shoal_schema.fields.addresses import Address
from shoal_schema.fields.declaring import PROXY
from shoal_schema.process.environment import SettingsError, variables
from shoal_schema.resource.model import ExtraColumns
from shoal_schema.resource.rollout import RolloutSpec
from shoal_schema.resource.traffic import BatchingPolicy, RowChecks


def test_an_empty_environment_gives_the_defaults() -> None:
    settings = Settings.from_env({"SHOAL_QUEUE_MAX_BYTES": "", "HOME": "/root"})

    # A process alone has no load balancer to wait for.
    assert settings == structs.replace(Settings(), rollout=RolloutSpec(drain_delay_seconds=0.0))


GIVEN: dict[str, tuple[str, Any]] = {
    "SHOAL_MODEL_NAME": ("cat-net_1.0", "cat-net_1.0"),
    "SHOAL_MODEL_VERSION": ("7", "7"),
    "SHOAL_LOG_LEVEL": ("debug", "DEBUG"),
    "SHOAL_LOG_FORMAT": ("JSON", "json"),
    "SHOAL_PROXY_ACCESS_LOG_PERCENT": ("0.1", 0.1),
    "SHOAL_PROXY_LISTEN": ("unix:/tmp/s", Address(path="/tmp/s")),
    "SHOAL_PROXY_ADMIN_LISTEN": ("[::1]:0", Address("::1", 0)),
    "SHOAL_PROXY_ADMIN_HOSTS": ("shoal.example, *", ("shoal.example", "*")),
    "SHOAL_PROXY_RUNTIME": ("http://triton:8000/", Address("triton", 8000)),
    "SHOAL_BATCHING_MAX_BATCH_SIZE": ("64", 64),
    "SHOAL_BATCHING_MAX_DELAY_MS": ("2.5", 2.5),
    "SHOAL_BATCHING_POLICY": ("fixed", BatchingPolicy.FIXED),
    "SHOAL_BATCHING_IDEMPOTENT": ("true", True),
    "SHOAL_BATCHING_COALESCE": ("True", True),
    "SHOAL_BATCHING_ROW_CHECKS": ("off", RowChecks.OFF),
    "SHOAL_QUEUE_PRIORITY_AGEING_MS": ("5", 5.0),
    "SHOAL_QUEUE_FAIR_SHARE_HEADER": ("X-Tenant", "X-Tenant"),
    "SHOAL_QUEUE_FAIR_SHARE_WEIGHTS": ('{"acme": 3, "=": 0.5}', {"acme": 3, "=": 0.5}),
    "SHOAL_BATCHING_PAD_BUCKETS": ('{"x": [128, 64, 64]}', {"x": (128, 64, 64)}),
    "SHOAL_BATCHING_PADDING_FACTOR": ("16", 16.0),
    "SHOAL_PROXY_API_KEYS": ("/run/keys", "/run/keys"),
    "SHOAL_ACCESS_HEADER": ("X-Consumer", "X-Consumer"),
    "SHOAL_ACCESS_HEADER_KEYS": ("edge, inner", ("edge", "inner")),
    "SHOAL_ACCESS_JWT_ISSUER": ("https://issuer.example.com", "https://issuer.example.com"),
    "SHOAL_ACCESS_JWT_AUDIENCE": ("cat", "cat"),
    "SHOAL_ACCESS_JWT_JWKS_URL": ("https://issuer.example.com/keys", "https://issuer.example.com/keys"),
    "SHOAL_ACCESS_JWT_SCOPE": ("predict", "predict"),
    "SHOAL_ACCESS_JWT_CALLER_CLAIM": ("client_id", "client_id"),
    "SHOAL_ACCESS_ROWS_PER_SECOND": ('{"a": 1, "*": 0.5}', {"a": 1, "*": 0.5}),
    "SHOAL_ACCESS_ROWS_IN_FLIGHT": ('{"a": 64}', {"a": 64}),
    "SHOAL_ASYNC_TIMEOUT_S": ("60", 60),
    "SHOAL_ASYNC_RESULT_S": ("30", 30),
    "SHOAL_ASYNC_MAX_REQUESTS": ("5", 5),
    "SHOAL_ASYNC_MAX_BYTES": ("4096", 4096),
    "SHOAL_ASYNC_STORE": ("s3://bucket/results", "s3://bucket/results"),
    "SHOAL_ASYNC_WEBHOOK_HOSTS": ("hooks.example.com, *.example.org", ("hooks.example.com", "*.example.org")),
    "SHOAL_PROXY_WEBHOOK_KEYS": ("/run/webhooks", "/run/webhooks"),
    "SHOAL_BATCHING_IN_FLIGHT": ("2", 2),
    "SHOAL_QUEUE_MAX_ROWS": ("128", 128),
    "SHOAL_QUEUE_MAX_BYTES": ("1024", 1024),
    "SHOAL_QUEUE_TIMEOUT_MS": ("500", 500.0),
    "SHOAL_PROXY_MAX_BODY_BYTES": ("4096", 4096),
    "SHOAL_PROXY_RUNTIME_INSTANCES": ("2", 2),
    "SHOAL_PROXY_MAX_HEAD_BYTES": ("2048", 2048),
    "SHOAL_PROXY_HEAD_TIMEOUT_S": ("0.25", 0.25),
    "SHOAL_PROXY_DOCS": ("true", True),
    "SHOAL_PROXY_MAX_UNSENT_BYTES": ("1048576", 1048576),
    "SHOAL_PROXY_REPLACEMENT_TIMEOUT_S": ("5", 5.0),
    "SHOAL_PROXY_INSTANCE": ("uid-1", "uid-1"),
    "SHOAL_PROXY_COMPOSER_DIR": ("/ways", "/ways"),
    "SHOAL_PROXY_NAMESPACE": ("shop", "shop"),
    "SHOAL_PROXY_BODY_TIMEOUT_S": ("0.5", 0.5),
    "SHOAL_PROXY_WRITE_TIMEOUT_S": ("2", 2.0),
    "SHOAL_PROXY_IDLE_TIMEOUT_S": ("75", 75.0),
    "SHOAL_PROXY_CONNECTION_AGE_S": ("30", 30.0),
    "SHOAL_PROXY_TLS_CERTIFICATE": ("/tls/tls.crt", "/tls/tls.crt"),
    "SHOAL_PROXY_TLS_KEY": ("/tls/tls.key", "/tls/tls.key"),
    "SHOAL_PROXY_TLS_CLIENT_CA": ("/ca/ca.crt", "/ca/ca.crt"),
    "SHOAL_PROXY_PEERS": ("b.svc:8080, [::1]:81", ("b.svc:8080", "[::1]:81")),
    "SHOAL_PROXY_CANDIDATES": ("c.svc:8080", ("c.svc:8080",)),
    "SHOAL_PROXY_REVISION": ("0a1b2c3d4e", "0a1b2c3d4e"),
    "SHOAL_PROXY_MIN_BYTES_PER_S": ("1000", 1000),
    "SHOAL_PROXY_MAX_CONNECTIONS": ("500", 500),
    "SHOAL_PROXY_MAX_CONNECTIONS_PER_ADDRESS": ("50", 50),
    "SHOAL_PROXY_DRAIN_DELAY_S": ("3", 3.0),
    "SHOAL_PROXY_DRAIN_TIMEOUT_S": ("0", 0.0),
    "SHOAL_PROXY_GRPC_PORT": ("8081", 8081),
    "SHOAL_PROXY_COMPRESSION_MIN_BYTES": ("1024", 1024),
    "SHOAL_PROXY_CORS_ALLOWED_ORIGINS": ("https://a.example, *", ("https://a.example", "*")),
    "SHOAL_PROXY_FORWARD_HEADERS": ("X-B, x-a,,x-A", ("X-B", "x-a", "x-A")),
    "SHOAL_MODEL_EXTRA_COLUMNS": ("ignore", ExtraColumns.IGNORE),
}


def test_every_variable_is_read() -> None:
    read = {name for name, each in variables().items() if each.env and PROXY in each.env.readers}
    ruling_out = {"SHOAL_BATCHING_LATENCY_OBJECTIVE_MS", "SHOAL_PROXY_GRAPH"}  # a delay, and batches
    assert set(GIVEN) == read - ruling_out
    objective = Settings.from_env({"SHOAL_BATCHING_LATENCY_OBJECTIVE_MS": "50"}).batching
    assert objective.latency_objective_milliseconds == 50

    settings = Settings.from_env({name: text for name, (text, _) in GIVEN.items()})
    step = {"name": "a", "url": "http://m/v2/models/m", "inputs": {"x": "request.x"}}
    graph = Settings.from_env({"SHOAL_PROXY_GRAPH": json.dumps({"steps": [step], "outputs": {"z": ["a.z"]}})})
    assert graph.process.graph is not None
    assert graph.process.graph.steps[0].url == "http://m/v2/models/m"
    few = {"SHOAL_PROXY_GRAPH": json.dumps({"steps": [step], "outputs": {"z": ["a.z"]}}), "SHOAL_QUEUE_MAX_ROWS": "16"}
    assert Settings.from_env(few).queue_rows == 16  # as the operator hands it on

    for name, (_, value) in GIVEN.items():
        setting = variables()[name]
        sections = [getattr(settings, part) for part in settings.__struct_fields__]
        assert value in [getattr(section, setting.path[-1], None) for section in sections], name


def test_header_names_are_compared_as_they_arrive() -> None:
    settings = Settings.from_env(
        {"SHOAL_PROXY_FORWARD_HEADERS": "X-B, x-a,,x-A", "SHOAL_QUEUE_FAIR_SHARE_HEADER": "X-Tenant"}
    )

    assert settings.forwarded_headers == (b"x-a", b"x-b")
    assert settings.fair_share_header == b"x-tenant"


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("SHOAL_BATCHING_MAX_BATCH_SIZE", "0", "1 to 65536"),
        ("SHOAL_BATCHING_MAX_BATCH_SIZE", "65537", "1 to 65536"),
        ("SHOAL_BATCHING_MAX_BATCH_SIZE", "8.5", "1 to 65536"),
        ("SHOAL_BATCHING_MAX_BATCH_SIZE", "many", "1 to 65536"),
        ("SHOAL_BATCHING_MAX_DELAY_MS", "-1", "0 to 60000"),
        ("SHOAL_BATCHING_MAX_DELAY_MS", "nan", "0 to 60000"),
        ("SHOAL_BATCHING_POLICY", "eager", "Adaptive, Fixed, None"),
        ("SHOAL_BATCHING_IDEMPOTENT", "yes", "true or false"),
        ("SHOAL_QUEUE_FAIR_SHARE_HEADER", "x-a,x-b", "a header name"),
        ("SHOAL_QUEUE_FAIR_SHARE_WEIGHTS", '{"a": 0}', "a JSON object of weights above 0"),
        ("SHOAL_QUEUE_FAIR_SHARE_WEIGHTS", "a=1", "a JSON object of weights above 0"),
        ("SHOAL_BATCHING_IN_FLIGHT", "65", "1 to 64"),
        ("SHOAL_BATCHING_PADDING_FACTOR", "1", "2 to 1000000"),
        ("SHOAL_BATCHING_PAD_BUCKETS", '{"x": [0]}', 'a JSON object of lists of lengths, {"tokens": [64, 128]}'),
        ("SHOAL_QUEUE_MAX_BYTES", "1", "1024 to 1099511627776"),
        ("SHOAL_QUEUE_TIMEOUT_MS", "inf", "1 to 3600000"),
        ("SHOAL_PROXY_BODY_TIMEOUT_S", "0", "more than 0 to 3600"),
        ("SHOAL_MODEL_NAME", "a/b", "letters, digits, '.', '_' and '-'"),
        ("SHOAL_MODEL_VERSION", "1 2", "letters, digits, '.', '_' and '-'"),
        ("SHOAL_PROXY_LISTEN", "8080", "HOST:PORT or unix:PATH"),
        ("SHOAL_PROXY_LISTEN", "a:65536", "HOST:PORT or unix:PATH"),
        ("SHOAL_PROXY_LISTEN", "a:b:1", "HOST:PORT or unix:PATH"),
        ("SHOAL_PROXY_LISTEN", "unix:", "HOST:PORT or unix:PATH"),
        ("SHOAL_PROXY_ADMIN_LISTEN", "unix:/tmp/admin", "HOST:PORT"),
        ("SHOAL_PROXY_ADMIN_HOSTS", "http://shoal", "comma-separated host names or *"),
        ("SHOAL_PROXY_RUNTIME", "https://triton:443", "unix:PATH or http://HOST:PORT"),
        ("SHOAL_PROXY_FORWARD_HEADERS", "x y", "comma-separated header names"),
        ("SHOAL_PROXY_FORWARD_HEADERS", "é", "comma-separated header names"),
    ],
)
def test_a_bad_value_is_named_with_key_range_and_value(variable: str, text: str, allowed: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({variable: text})

    assert str(caught.value).startswith(f"{variable} must be {allowed}")
    assert str(caught.value).endswith(f"not {text!r}")


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        pytest.param(
            {"SHOAL_BATCHING_MAX_BATCH_SIZE": "64", "SHOAL_QUEUE_MAX_ROWS": "63"},
            r"SHOAL_QUEUE_MAX_ROWS must be at least SHOAL_BATCHING_MAX_BATCH_SIZE \(64\), not 63",
            id="a queue smaller than a batch",
        ),
        pytest.param(
            {"SHOAL_PROXY_FORWARD_HEADERS": "x-a,Content-Length"},
            "SHOAL_PROXY_FORWARD_HEADERS: .* must not name",
            id="a header that the connection sets",
        ),
        pytest.param(
            {"SHOAL_ACCESS_JWT_ISSUER": "https://a"},
            "SHOAL_ACCESS_JWT_ISSUER",
            id="half an issuer",
        ),
        pytest.param(
            {"SHOAL_ACCESS_HEADER": "x-consumer", "SHOAL_ACCESS_HEADER_KEYS": "edge"},
            "SHOAL_ACCESS_HEADER needs SHOAL_ACCESS_HEADER_KEYS and SHOAL_PROXY_API_KEYS",
            id="a gateway without a key",
        ),
        pytest.param(
            {"SHOAL_ACCESS_JWT_JWKS_URL": "http://issuer.example.com/keys"},
            "SHOAL_ACCESS_JWT_JWKS_URL must be an https URL",
            id="keys that anybody on the way may change",
        ),
        pytest.param(
            {"SHOAL_QUEUE_FAIR_SHARE_HEADER": "x-request-timeout-ms"},
            "SHOAL_QUEUE_FAIR_SHARE_HEADER: .* must not name",
            id="a header that the proxy reads",
        ),
        pytest.param(
            {"SHOAL_BATCHING_POLICY": "Fixed", "SHOAL_BATCHING_MAX_DELAY_MS": "500", "SHOAL_QUEUE_TIMEOUT_MS": "500"},
            r"SHOAL_BATCHING_MAX_DELAY_MS must be less than SHOAL_QUEUE_TIMEOUT_MS \(500\), not 500",
            id="a delay beyond the time-out",
        ),
        pytest.param(
            {"SHOAL_ASYNC_STORE": "file:///results"},
            "SHOAL_ASYNC_STORE .* SHOAL_ASYNC_TIMEOUT_S",
            id="a store of no asynchronous requests",
        ),
        pytest.param(
            {
                "SHOAL_PROXY_GRAPH": '{"steps": [{"name": "a", "url": "http://m/v2/models/m",'
                ' "inputs": {"x": "request.x"}}],'
                ' "outputs": {"z": ["a.z"]}}',
                "SHOAL_ASYNC_TIMEOUT_S": "60",
            },
            "graphs",
            id="asynchronous requests to a graph",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_rejected(environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings.from_env(environ)


def test_a_larger_batch_brings_a_larger_queue() -> None:
    assert Settings.from_env({"SHOAL_BATCHING_MAX_BATCH_SIZE": "4096"}).queue_rows == 16384


@pytest.mark.parametrize("text", ["unix:/run/x.sock", "0.0.0.0:80", "[::1]:80"])
def test_addresses_are_written_as_they_are_read(text: str) -> None:
    assert str(Settings.from_env({"SHOAL_PROXY_LISTEN": text}).process.listen) == text
