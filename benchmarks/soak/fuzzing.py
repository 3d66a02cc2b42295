"""Requests that are nearly right: valid ones of each protocol, with some bytes changed."""

from random import Random

import orjson

from benchmarks.soak.neighbours import MODEL, honest_row, torchserve, v1, v2
from benchmarks.soak.target import post

TOKENS = (
    b"-1", b"1e999", b"null", b"true", b"NaN", b"18446744073709551616", b'"\\ud800"', b"[[[[", b"{}", b"\x00",
    b"\xff\xfe", b"\r\n", b"%00", b"../", b'"shape":[-1]', b'"data":[]', b'"binary_data_size":99999999999', b" " * 300,
)  # fmt: skip
HEADERS = (
    "inference-header-content-length: 7", "inference-header-content-length: -1", "content-type: image/jpeg",
    "content-type: multipart/form-data; boundary=" + "b" * 300, "content-encoding: gzip", "expect: 100-continue",
    "x-request-timeout-ms: 1e400", "x-shoal-priority: 77", "transfer-encoding: chunked", "connection: close",
    "traceparent: \xff\xff", "x-request-id: " + "i" * 3000,
)  # fmt: skip


def binary_v2(random: Random) -> tuple[str, dict[str, str], bytes]:
    """Return a V2 request whose tensor is binary."""
    size = random.randint(1, 8)
    shape = random.choice(([1, size], [size], [True, size], [1, size, 1], [0, size], [1, 2**62], ["1", size]))
    tensor = {"name": "x", "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": 4 * size}}
    header = orjson.dumps({"inputs": [tensor]})
    lines = {"inference-header-content-length": str(len(header)), "content-type": "application/octet-stream"}
    return f"/v2/models/{MODEL}/infer", lines, header + random.randbytes(4 * size)


def fuzzed(random: Random) -> bytes:
    """Return one whole request, wrong in one to four places, or in none."""
    makers = (lambda: v1(honest_row(random)), lambda: v2(honest_row(random)), lambda: torchserve(honest_row(random)))
    path, headers, body = random.choice((*makers, lambda: binary_v2(random)))()
    for _ in range(random.randint(0, 4)):
        body = mutated(random, body)
    lines = [f"{name}: {value}" for name, value in headers.items()]
    lines += random.sample(HEADERS, random.choice((0, 0, 0, 1, 2)))
    request = post(path, body, *lines)
    return mutated(random, request) if random.random() < 0.1 else request


def mutated(random: Random, data: bytes) -> bytes:
    """Return ``data`` with one place cut out, doubled, overwritten or filled with something odd."""
    start = random.randrange(len(data) + 1)
    stop = min(len(data), start + random.choice((0, 1, 1, 4, 30)))
    put = random.choice((b"", data[start:stop] * 2, random.randbytes(stop - start), random.choice(TOKENS)))
    return data[:start] + put + data[stop:]
