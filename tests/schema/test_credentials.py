"""Faults of credentials are reported by the variable's name, before a library reads the value."""

import pytest

from shoal_schema.resource.credentials import fault

NEWLINE = "ends in a newline"
ADDRESS = "http:// or https:// URL"


@pytest.mark.parametrize(
    ("scheme", "name", "value", "fragment"),
    [
        *(("s3", f"AWS_{name}", "s3cret\n", NEWLINE) for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION")),
        ("az", "AZURE_STORAGE_ACCOUNT_NAME", "s3cret\n", NEWLINE),
        ("abfss", "AZURE_STORAGE_ACCOUNT_KEY", " s3cret", "begins or ends with a space"),
        ("hf", "HF_TOKEN", "s3c\xe9ret", "not ASCII"),
        ("models", "MLFLOW_TRACKING_PASSWORD", "s3cret\r\n", NEWLINE),
        ("runs", "MLFLOW_TRACKING_TOKEN", "s3cret\nx: y", "holds a line break"),
        ("s3", "AWS_ENDPOINT_URL", "127.0.0.1:5055", ADDRESS),
        ("s3", "AWS_ENDPOINT_URL", "http://127.0.0.1:5055\n", NEWLINE),
        ("az", "AZURE_STORAGE_ENDPOINT", "host/s3cret", ADDRESS),
        ("models", "MLFLOW_TRACKING_URI", "http://u:s3cret/x@127.0.0.1:1", ADDRESS),
        ("models", "MLFLOW_TRACKING_URI", "http://u:8080/s3cret@127.0.0.1:1", ADDRESS),
        ("hf", "HF_ENDPOINT", "https://", ADDRESS),
        ("https", "HTTPS_PROXY", "socks5h://me:s3cret@127.0.0.1:1", ADDRESS),
        ("hf", "all_proxy", "socks5://127.0.0.1:1", ADDRESS),
        ("gs", "GOOGLE_APPLICATION_CREDENTIALS", '{"private_key": "a/s3cret"}', "GOOGLE_SERVICE_ACCOUNT_KEY"),
        ("gs", "GOOGLE_SERVICE_ACCOUNT", "s3cret", "must be the path of a file"),
    ],
)
def test_an_invalid_variable_is_named_without_its_value(scheme: str, name: str, value: str, fragment: str) -> None:
    error = fault(scheme, {"HOME": "\n", name: value})

    assert error.startswith(f"{name} ")
    assert fragment in error
    assert "s3c" not in error


@pytest.mark.parametrize(
    ("scheme", "name", "value"),
    [
        ("s3", "AWS_SECRET_ACCESS_KEY", "a/b+c="),
        ("s3", "AWS_ENDPOINT_URL", "http://[::1]:9000"),
        ("s3", "AWS_SESSION_TOKEN", ""),
        ("s3", "AWS_PROFILE", "k\xf6ln"),
        ("s3", "HF_TOKEN", "of another\n"),
        ("gs", "GOOGLE_APPLICATION_CREDENTIALS", "key.json"),
        ("gs", "GOOGLE_SERVICE_ACCOUNT", "/keys/google"),
        ("gs", "GOOGLE_SERVICE_ACCOUNT_KEY", '{\n"private_key": "\xe9"\n}\n'),
        ("models", "MLFLOW_TRACKING_URI", "https://me:s3%2Fcret@mlflow/prefix?a=b#c"),
        ("models", "MLFLOW_TRACKING_PASSWORD", "s3c\xe9ret"),
        ("https", "http_proxy", "127.0.0.1:3128"),
        ("https", "HTTPS_PROXY", "http://me:word@proxy:3128/"),
    ],
)
def test_values_that_may_be_valid_pass(scheme: str, name: str, value: str) -> None:
    assert fault(scheme, {name: value}) == ""
