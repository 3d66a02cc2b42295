"""``curl`` against the proxy, the way people type it."""

import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
import pytest

from tests.calls import TORCHSERVE_PATH, V1_PATH, V2_PATH, v2_body
from tests.fakes import Array, FakeRuntime, RunningProxy, running_proxy, tensor
from tests.interop.foreign import proxy_process, until_ok

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]

PHOTO = b"\xff\xd8\xff\xe0" + bytes(range(256)) * 8
JSON = ("-H", "content-type: application/json")


@dataclass(frozen=True)
class Answer:
    """What curl printed: each status line and header it saw, and the last body."""

    heads: str
    body: str

    @property
    def status(self) -> int:
        """Return the final status."""
        lines = [line for line in self.heads.splitlines() if line.startswith("HTTP/")]
        return int(lines[-1].split()[1])


def curl(*arguments: str) -> Answer:
    """Run curl and return what it saw."""
    command = ["curl", "-q", "-sS", "--max-time", "20", "--noproxy", "*", "-D", "/dev/stderr", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return Answer(done.stderr, done.stdout)


def length(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return how many bytes each photo has."""
    return {"length": np.array([len(photo) for photo in inputs["photo"].ravel()], dtype=np.int64)}


def photo_runtime() -> FakeRuntime:
    """Return a runtime that takes photos."""
    photo = tensor("photo", "BYTES", [-1], content_type="image/jpeg,image/png")
    return FakeRuntime(inputs=[photo], outputs=[tensor("length", "INT64", [-1])], model=length)


@pytest.fixture(scope="module")
def photos() -> Iterator[RunningProxy]:
    """Run a proxy in front of a model of photos."""
    with running_proxy(photo_runtime) as proxy:
        yield proxy


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """Return a file that begins as a JPEG does."""
    path = tmp_path / "cat.jpg"
    path.write_bytes(PHOTO)
    return path


@pytest.mark.parametrize("options", [(), JSON])
def test_v1_with_and_without_a_content_type(running: RunningProxy, options: tuple[str, ...]) -> None:
    answer = curl("-d", '{"instances": [[1, 2, 3, 4]]}', *options, running.url + V1_PATH)
    assert (answer.status, orjson.loads(answer.body)) == (200, {"predictions": [[2.0, 4.0, 6.0, 8.0]]})


def test_v2_from_a_file_with_a_request_id(running: RunningProxy, tmp_path: Path) -> None:
    body = tmp_path / "request.json"
    body.write_bytes(orjson.dumps(v2_body([[1, 2, 3, 4]])))
    answer = curl("-d", f"@{body}", "-H", "X-Request-Id: fish-7", running.url + V2_PATH)
    assert orjson.loads(answer.body)["outputs"][0]["data"] == [2, 4, 6, 8]
    assert "x-request-id: fish-7" in answer.heads.lower()


def test_torchserve_takes_json(running: RunningProxy) -> None:
    answer = curl("-d", "[1, 2, 3, 4]", *JSON, running.url + TORCHSERVE_PATH)
    assert orjson.loads(answer.body) == [2, 4, 6, 8]


@pytest.mark.parametrize("version", ["", "/1"])
def test_torchserve_takes_a_file_by_upload(photos: RunningProxy, photo: Path, version: str) -> None:
    answer = curl("-T", str(photo), photos.url + TORCHSERVE_PATH + version)
    assert (answer.status, orjson.loads(answer.body)) == (200, len(PHOTO))


@pytest.mark.parametrize("field", ["data=@{}", "data=@{};type=image/jpeg", "body=@{}"])
def test_torchserve_takes_a_file_in_a_form(photos: RunningProxy, photo: Path, field: str) -> None:
    answer = curl("-F", field.format(photo), photos.url + TORCHSERVE_PATH)
    assert (answer.status, orjson.loads(answer.body)) == (200, len(PHOTO))


@pytest.mark.parametrize("path", [TORCHSERVE_PATH, V1_PATH, V2_PATH])
def test_every_protocol_takes_a_file_that_says_its_type(photos: RunningProxy, photo: Path, path: str) -> None:
    answer = curl("--data-binary", f"@{photo}", "-H", "Content-Type: image/jpeg", photos.url + path)
    assert answer.status == 200, answer.body
    assert str(len(PHOTO)) in answer.body


def test_torchserve_takes_a_file_without_a_type(photos: RunningProxy, photo: Path) -> None:
    answer = curl("--data-binary", f"@{photo}", photos.url + TORCHSERVE_PATH)
    assert (answer.status, orjson.loads(answer.body)) == (200, len(PHOTO))


def test_a_wrong_media_type_is_415_in_the_shape_of_the_protocol(photos: RunningProxy, photo: Path) -> None:
    options = ("--data-binary", f"@{photo}", "-H", "Content-Type: video/mp4")
    answer = curl(*options, photos.url + TORCHSERVE_PATH)
    assert (answer.status, orjson.loads(answer.body)["code"]) == (415, 415)
    assert "image/jpeg or image/png" in orjson.loads(answer.body)["message"]
    assert "image/jpeg or image/png" in orjson.loads(curl(*options, photos.url + V1_PATH).body)["error"]


def test_a_large_body_waits_for_100_continue(photos: RunningProxy, tmp_path: Path) -> None:
    large = tmp_path / "large.jpg"
    large.write_bytes(bytes(2 * 1024 * 1024))
    expect = ("-H", "Expect: 100-continue", "--expect100-timeout", "15")
    answer = curl("--data-binary", f"@{large}", *expect, photos.url + TORCHSERVE_PATH)
    assert "100 Continue" in answer.heads
    assert (answer.status, orjson.loads(answer.body)) == (200, 2 * 1024 * 1024)


def test_a_body_over_the_limit_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    large = tmp_path / "large.jpg"
    large.write_bytes(bytes(2 * 1024 * 1024))
    with running_proxy(photo_runtime, max_body_bytes=1024 * 1024) as photos:
        expect = ("-H", "Expect: 100-continue", "--expect100-timeout", "15", "-w", "%{stderr}uploaded=%{size_upload}")
        answer = curl("--data-binary", f"@{large}", *expect, photos.url + TORCHSERVE_PATH)
    assert answer.status == 413
    assert "100 Continue" not in answer.heads
    assert "uploaded=0" in answer.heads
    assert orjson.loads(answer.body)["type"] == "TooLargeFrameException"


def test_a_body_in_chunks_is_understood(photos: RunningProxy, photo: Path) -> None:
    options = ("--data-binary", f"@{photo}", "-H", "Content-Type: image/jpeg", "-H", "Transfer-Encoding: chunked")
    assert orjson.loads(curl(*options, photos.url + TORCHSERVE_PATH).body) == len(PHOTO)


def test_http_1_0_is_answered_and_closed(running: RunningProxy) -> None:
    answer = curl("-0", "-d", '{"instances": [[1, 2, 3, 4]]}', running.url + V1_PATH)
    assert answer.status == 200
    assert "connection: close" in answer.heads.lower()
    assert curl("-0", running.url + "/ping").status == 200


def test_head_and_options(running: RunningProxy) -> None:
    health = curl("-I", running.url + "/v2/health/ready")
    assert (health.status, "content-length" in health.heads.lower()) == (200, True)
    for arguments in (("-I",), ("-X", "OPTIONS"), ()):
        infer = curl(*arguments, running.url + V2_PATH)
        assert infer.status == 405
        assert "allow: post" in infer.heads.lower()


def test_ping_is_torchserves_own(running: RunningProxy) -> None:
    answer = curl(running.url + "/ping")
    assert (answer.status, answer.heads.lower().count("content-type: application/json")) == (200, 1)
    assert orjson.loads(answer.body) == {"status": "Healthy"}


def test_a_unix_socket_is_taken_over_from_a_process_that_stopped(running: RunningProxy, tmp_path: Path) -> None:
    path, runtime = tmp_path / "proxy.sock", f"http://{running.proxy.settings.process.runtime}"
    listen = f"unix:{path}"
    for _ in range(2):
        with proxy_process(SHOAL_MODEL_NAME="double", SHOAL_PROXY_LISTEN=listen, SHOAL_PROXY_RUNTIME=runtime) as (
            address,
            admin,
        ):
            assert address == listen
            until_ok(f"http://{admin}/readyz")
            answer = curl("--unix-socket", str(path), "-d", '{"instances": [[1, 2, 3, 4]]}', "http://proxy" + V1_PATH)
            assert orjson.loads(answer.body) == {"predictions": [[2.0, 4.0, 6.0, 8.0]]}


def test_a_unix_socket_that_somebody_listens_on_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "proxy.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with (
            pytest.raises(AssertionError, match=r"cannot listen on unix:.*in use"),
            proxy_process(SHOAL_PROXY_LISTEN=f"unix:{path}"),
        ):
            pass


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(PHOTO)
    with (
        pytest.raises(AssertionError, match=r"cannot listen on unix:.*in use"),
        proxy_process(SHOAL_PROXY_LISTEN=f"unix:{path}"),
    ):
        pass
    assert path.read_bytes() == PHOTO
