"""The models to measure, and the requests that clients send. Pure: the seed is an argument."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

import numpy as np
import orjson
from numpy.typing import NDArray

MODEL = "served"
BUCKETS = (16, 32, 64, 128, 256)
"""Lengths that ragged rows are padded to."""
VOCABULARY = 30_522

Row = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Case:
    """One model.

    Args:
        name: of the case.
        kind: of network: `resnet`, `encoder`, `mlp` or `detector`.
        batch_rows: of the largest batch.
        shape: of one row of its input; -1 for rows of different lengths.
        outputs: shape of one row of its output `y`.
        sizes: of the network.
        what: the model is, for the table.
        request_rows: of one request; rates are measured for each.
    """

    name: str
    kind: str
    batch_rows: int
    shape: tuple[int, ...]
    outputs: tuple[int, ...]
    sizes: Mapping[str, int]
    what: str
    request_rows: tuple[int, ...] = (1,)

    @property
    def datatype(self) -> str:
        """Return the V2 datatype of the input."""
        return {"resnet": "UINT8", "detector": "UINT8", "encoder": "INT64", "mlp": "FP32"}[self.kind]

    @property
    def input_name(self) -> str:
        """Return the name of the input."""
        return "input_ids" if self.kind == "encoder" else "x"

    @property
    def ragged(self) -> bool:
        """Return whether rows differ in length."""
        return -1 in self.shape


MINILM = {"layers": 6, "width": 384, "heads": 12, "hidden": 1536}
CASES = {
    case.name: case
    for case in (
        Case(
            "resnet",
            "resnet",
            64,
            (3, 224, 224),
            (1000,),
            {"width": 64, "depth": 4, "classes": 1000},
            "ResNet-50, 224 x 224 pictures of bytes",
        ),
        Case(
            "bert",
            "encoder",
            64,
            (128,),
            (768,),
            {"layers": 12, "width": 768, "heads": 12, "hidden": 3072},
            "BERT-base, 128 tokens",
        ),
        Case("minilm", "encoder", 64, (64,), (384,), MINILM, "MiniLM (6 layers, 384 wide), 64 tokens"),
        Case(
            "mlp",
            "mlp",
            64,
            (1024,),
            (512,),
            {"width": 1024, "hidden": 2048, "out": 512},
            "perceptron 1024-2048-2048-512, 30 MB of FP32",
            (1, 32),
        ),
        Case(
            "detector",
            "detector",
            16,
            (3, 320, 320),
            (2100, 84),
            {"width": 32},
            "detector, 320 x 320, 706 KB of results per row",
        ),
        Case("sentences", "encoder", 64, (-1,), (384,), MINILM, "MiniLM, sentences of 4 to 256 tokens"),
    )
}
SMALL: Mapping[str, Case] = {
    "resnet": replace(CASES["resnet"], sizes={"width": 8, "depth": 1, "classes": 1000}, shape=(3, 32, 32)),
    "bert": replace(
        CASES["bert"], sizes={"layers": 1, "width": 32, "heads": 2, "hidden": 64}, shape=(16,), outputs=(32,)
    ),
    "minilm": replace(
        CASES["minilm"], sizes={"layers": 1, "width": 32, "heads": 2, "hidden": 64}, shape=(8,), outputs=(32,)
    ),
    "mlp": replace(CASES["mlp"], sizes={"width": 64, "hidden": 64, "out": 512}, shape=(64,)),
    "detector": replace(CASES["detector"], sizes={"width": 4}, shape=(3, 64, 64), outputs=(84, 84)),
    "sentences": replace(CASES["sentences"], sizes={"layers": 1, "width": 32, "heads": 2, "hidden": 64}, outputs=(32,)),
}
"""The same with tiny networks, for ``--quick``."""


def find_case(name: str, *, quick: bool) -> Case:
    """Return a case by its name."""
    case = (SMALL if quick else CASES)[name]
    return replace(case, batch_rows=min(case.batch_rows, 8)) if quick else case


def rows_of(case: Case, count: int, seed: int) -> list[Row]:
    """Return rows of random values, without the batch dimension."""
    random = np.random.default_rng(seed)
    return [{case.input_name: _values(case, random)} for _ in range(count)]


def _values(case: Case, random: np.random.Generator) -> NDArray[np.generic]:
    if case.kind == "encoder":
        tokens = sentence_tokens(random) if case.ragged else case.shape[0]
        return random.integers(1, VOCABULARY, tokens, np.int64)
    if case.datatype == "UINT8":
        return random.integers(0, 256, case.shape, np.uint8)
    return random.standard_normal(case.shape, np.float32)


def sentence_tokens(random: np.random.Generator) -> int:
    """Return the number of tokens of a sentence: log-normal, median 32, from 4 to the last bucket."""
    return int(np.clip(random.lognormal(np.log(32), 0.8), 4, BUCKETS[-1]))


def bucket_of(tokens: int) -> int:
    """Return the length that a row is padded to."""
    return next(each for each in BUCKETS if tokens <= each)


def infer_requests(case: Case, count: int, request_rows: int, seed: int) -> list[tuple[bytes, int]]:
    """Return V2 requests with binary tensors, each with the length of its JSON header.

    Rows of different lengths are sent one per request.
    """
    rows = cycle(rows_of(case, max(count, request_rows), seed))
    return [_infer_request(case, list(islice(rows, request_rows))) for _ in range(count)]


def _infer_request(case: Case, rows: Sequence[Row]) -> tuple[bytes, int]:
    values = np.stack([row[case.input_name] for row in rows])
    tensor = {"name": case.input_name, "datatype": case.datatype, "shape": values.shape}
    header = orjson.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": values.nbytes}}],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        }
    )
    return header + values.tobytes(), len(header)


def batches_by_bucket(rows: Sequence[Row], batch_rows: int, name: str) -> Iterator[list[Row]]:
    """Yield full batches of rows of the same bucket, in the order in which they fill."""
    filling: dict[int, list[Row]] = {}
    for row in rows:
        bucket = bucket_of(len(row[name]))
        filling.setdefault(bucket, []).append(row)
        if len(filling[bucket]) == batch_rows:
            yield filling.pop(bucket)


def closed_name(case: str, clients: int, request_rows: int = 1) -> str:
    """Name a closed loop of clients."""
    return f"{case}, {clients} client{'s' if clients != 1 else ''}" + (
        f" with {request_rows} rows each" if request_rows != 1 else ""
    )
