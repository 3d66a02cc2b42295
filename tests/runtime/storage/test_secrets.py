"""Nothing that may be secret is expected: a whole process, which logs all that it can, with a secret in each place."""

import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.runtime.storage.stand_in import serving


class Refusal(BaseHTTPRequestHandler):
    """Repeats what it was sent, in head and body; `/moved` sends on to an address that is signed."""

    def do_GET(self) -> None:
        body = f"no: {self.path} {self.headers}".encode()
        self.send_response(302 if self.path.startswith("/moved") else 403)
        self.send_header("location", "https://127.0.0.1:1/there?sig=s3cret-signature")
        self.send_header("x-error-message", self.path)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusal)
    with serving(server):
        yield f"127.0.0.1:{server.server_address[1]}"


AWS = {"AWS_ACCESS_KEY_ID": "s3cret-id", "AWS_SECRET_ACCESS_KEY": "s3cret-key", "AWS_REGION": "here"}
AZURE = {"AZURE_STORAGE_ACCOUNT_NAME": "acc", "AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=s3cret-signature"}


@pytest.mark.parametrize(
    ("uri", "settings", "expected"),
    [
        ("http://me:s3cret-word@HOST/cat.pt2?sig=s3cret-query", {}, "/cat.pt2 cannot be downloaded"),
        ("http://me:s3cret-word@HOST/moved?sig=s3cret-query", {}, "/moved cannot be downloaded"),
        ("s3://bucket/cat?sig=s3cret-query", {}, "must not hold credentials or a query"),
        ("s3://me:s3cret-word@bucket/cat", {}, "must not hold credentials or a query"),
        ("s3://bucket/cat", {**AWS, "AWS_ENDPOINT_URL": "http://HOST"}, "the credentials do not allow"),
        (
            "az://box/cat",
            {**AZURE, "AZURE_STORAGE_ENDPOINT": "http://HOST/acc"},
            "the credentials do not allow",
        ),
        ("hf://team/cat", {"HF_TOKEN": "s3cret-token", "HF_ENDPOINT": "http://HOST"}, "hf://team/cat"),
        (
            "models:/cat/1",
            {"MLFLOW_TRACKING_URI": "http://me:s3cret-word@HOST"},
            "models:/cat/1 cannot be read",
        ),
        (
            "runs:/cat/1",
            {"MLFLOW_TRACKING_URI": "http://HOST", "MLFLOW_TRACKING_TOKEN": "s3cret-token"},
            "runs:/cat/1 cannot be read",
        ),
        *(
            ("models:/cat/1", {"MLFLOW_TRACKING_URI": "http://HOST", "MLFLOW_TRACKING_TOKEN": token}, expected)
            for token, expected in (
                ("s3cret-token\n", "MLFLOW_TRACKING_TOKEN ends in a newline"),
                ("s3cret-token\nx: y", "MLFLOW_TRACKING_TOKEN holds a line break"),
                ("s3cret-t\xf6ken", "MLFLOW_TRACKING_TOKEN holds a character that is not ASCII"),
            )
        ),
        *(
            ("models:/cat/1", {"MLFLOW_TRACKING_URI": address}, "MLFLOW_TRACKING_URI must be the http:// or https://")
            for address in ("http://u:s3cret/x@HOST", "http://u:s3cret#x@HOST", "http://u:s3cret?x@HOST")
        ),
        ("hf://team/cat", {"HF_TOKEN": "s3cret-t\xf6ken", "HF_ENDPOINT": "http://HOST"}, "HF_TOKEN holds a character"),
        ("gs://box/cat", {"GOOGLE_APPLICATION_CREDENTIALS": '{"private_key": "s3cret"}'}, "GOOGLE_SERVICE_ACCOUNT_KEY"),
        ("gs://box/cat", {"GOOGLE_SERVICE_ACCOUNT": "s3cret-key"}, "GOOGLE_SERVICE_ACCOUNT must be the path of a file"),
        ("s3://bucket/cat", {**AWS, "AWS_SESSION_TOKEN": "s3cret\n"}, "AWS_SESSION_TOKEN ends in a newline"),
        ("s3://bucket/cat", {**AWS, "AWS_ENDPOINT_URL": "s3cret:1"}, "AWS_ENDPOINT_URL must be the http://"),
        ("http://HOST/cat.pt2", {"SHOAL_MODEL_MAX_BYTES": "s3cret"}, "SHOAL_MODEL_MAX_BYTES must be"),
        (
            "models:/cat/1",
            {"MLFLOW_TRACKING_URI": "https://HOST", "SSL_CERT_FILE": "/no/s3cret", "A_TOKEN": "/no/s3cret"},
            "SSL_CERT_FILE must name a file of certificates",
        ),
        ("http://HOST/cat.pt2", {"HTTP_PROXY": "socks5h://me:s3cret@HOST"}, "HTTP_PROXY must be the http://"),
    ],
)
def test_no_secret_is_logged_nor_in_the_last_words(
    uri: str, settings: dict[str, str], expected: str, host: str, tmp_path: Path
) -> None:
    given = {name: value.replace("HOST", host) for name, value in settings.items()}
    environment = {
        **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HOME": str(tmp_path),
        "SHOAL_MODEL_URI": uri.replace("HOST", host),
        "SHOAL_LOG_LEVEL": "DEBUG",
        **given,
    }
    command = [sys.executable, "-m", "shoal_runtime", "fetch"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 3 or "must" in done.stderr
    assert expected in done.stderr
    assert "s3cret" not in done.stdout + done.stderr
