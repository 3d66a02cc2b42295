import base64
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest

from shoal_runtime.storage.redaction import MOST, redacted_line, without_secrets

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "s3cret/key+",
    "HF_TOKEN": "hf_s3cret",
    "MLFLOW_TRACKING_PASSWORD": "pass-word",
    "AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=s3cret",
    "GOOGLE_APPLICATION_CREDENTIALS": "/keys/google.json",
    "MY_KEY": "short",
}


def test_users_queries_and_secrets_are_left_out() -> None:
    text = "GET https://me:pass-word@host/a/b?sig=s3cret%2Fkey in 1 ms: s3cret/key+ s3cret%2Fkey%2B (hf_s3cret)\nmore"

    assert redacted_line(text, SECRETS) == "GET https://host/a/b in 1 ms: *** *** (***)"


def test_what_helps_is_left_in() -> None:
    assert redacted_line("cannot open /keys/google.json: short", SECRETS) == "cannot open /keys/google.json: short"


def test_a_page_is_cut() -> None:
    assert len(redacted_line("x" * 10_000, {})) == MOST + 3


@pytest.mark.parametrize("secret", ["s3cret word\n", "s3crets", "s3cr\xf6ts\r\nx: y", "two\nlines of s3cret"])
@pytest.mark.parametrize(
    "written",
    [
        str,
        str.strip,
        repr,
        json.dumps,
        quote,
        lambda text: repr(f"Bearer {text}".encode()),
        lambda text: text.splitlines()[-1] if len(text.splitlines()[-1]) > 5 else text,
        *(
            lambda text, user=user: base64.b64encode(f"{user}:{text}".encode()).decode()
            for user in ("", "a", "ab", "abc")
        ),
    ],
)
def test_a_secret_is_left_out_however_it_is_written(secret: str, written: Callable[[str], str]) -> None:
    expected = without_secrets(f"illegal: {written(secret)}!", {"HF_TOKEN": secret})

    left = base64.b64decode(expected.replace("illegal: ", "").partition("***")[0] + "==").decode(errors="replace")
    assert "***" in expected
    assert "cr" not in expected + left


def test_of_an_address_the_user_and_the_password_are_left_out_and_the_server_is_left_in() -> None:
    environment = {"MLFLOW_TRACKING_URI": "http://someb0dy:s3cret%2Fword@mlflow:5000", "HF_ENDPOINT": "http://hub:1"}

    expected = redacted_line("Invalid port: 's3cret/word' (someb0dy) at http://mlflow:5000, http://hub:1", environment)
    assert expected == "Invalid port: '***' (***) at http://mlflow:5000, http://hub:1"

    unquoted = {"MLFLOW_TRACKING_URI": "http://u:s3crets/x@mlflow:5000"}
    assert redacted_line("Invalid port: 's3crets'", unquoted) == "Invalid port: '***'"


def test_a_key_where_a_file_should_be_named_is_left_out() -> None:
    for name in ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS"):
        assert redacted_line("cannot open s3crets", {name: "s3crets"}) == "cannot open ***"
