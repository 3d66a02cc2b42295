"""An example model without any server: ``python -m benchmarks.bare cat``, one line of JSON on standard output.

Runs the example's own class in a loop over real inputs, a batch at a time: `forward` alone on
prepared tensors at several batch sizes, and, at the best of them, the whole of it (bytes in, answers
out) with as many threads as the runtime has for each stage. A process of its own, so that what torch
holds does not disturb the server that is measured next. ``--tuned`` keeps freed memory as the runtime
does; without it, everything is as torch comes.
"""

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.inputs import INPUTS
from shoal_runtime import Context
from shoal_schema.process.memory import KEEP_TENSORS, keep_freed_memory

ROOT = Path(__file__).parents[1]
WARM_UP_S = 0.5
GOOD_ENOUGH = 0.98
"""A smaller batch that reaches this share of the best rate is taken: larger ones only wait longer."""
PREPROCESS_THREADS = 2
SEARCH_S = 1.0
"""For each batch size that is tried, and for preprocess alone; what is compared is measured longer."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser("python -m benchmarks.bare", description=__doc__)
    parser.add_argument("model", choices=INPUTS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    parser.add_argument("--sizes", type=lambda text: [int(each) for each in text.split(",")], default=[1, 2, 4, 8, 16])
    parser.add_argument("--tuned", action="store_true", help="keep freed memory")
    options = parser.parse_args(arguments)
    if options.tuned:
        keep_freed_memory(KEEP_TENSORS)
    torch.set_num_threads(options.threads)
    with torch.inference_mode():
        bare = Bare(options.model, torch.device(options.device), max(options.sizes))
        json.dump(bare.measure(options.sizes, options.seconds), sys.stdout)
    return 0


class Bare:
    """One example's model, loaded, and its inputs."""

    def __init__(self, name: str, device: torch.device, max_batch_size: int) -> None:
        folder = ROOT / "examples" / name / "model"
        self._device = device
        self._model = load_class(folder, name.capitalize())()
        self._model.load(Context(folder, device, None, max_batch_size))
        self._items = INPUTS[name].items()
        self._prepared = [self._model.preprocess(item) for item in self._items]

    def measure(self, sizes: Sequence[int], seconds: float) -> dict[str, Any]:
        """Return rows per second by batch size, the best size, and what each stage takes of a row."""
        by_size = {size: self._rate(size, SEARCH_S, self._prepared_batches(size), self._forward) for size in sizes}
        limit = GOOD_ENOUGH * max(by_size.values())
        best = min(size for size, rate in by_size.items() if rate >= limit)
        forward_per_s = self._rate(best, seconds, self._prepared_batches(best), self._forward)
        with ThreadPoolExecutor(PREPROCESS_THREADS) as pool:
            whole_per_s, cpu_ms = self._rate_and_cpu(
                best, seconds, batches(self._items, best), lambda items: self._whole(items, pool)
            )
        one_by_one = self._rate(best, SEARCH_S, batches(self._items, best), self._preprocess)
        return {
            "rows_per_s_by_size": by_size,
            "batch_size": best,
            "forward_per_s": forward_per_s,
            "whole_per_s": whole_per_s,
            "whole_cpu_ms_per_row": cpu_ms,
            "forward_ms_per_row": 1e3 / forward_per_s,
            "preprocess_ms_per_row": 1e3 / one_by_one,
        }

    def _rate(self, size: int, seconds: float, inputs: Iterator[Any], run: Callable[[Any], object]) -> float:
        return self._rate_and_cpu(size, seconds, inputs, run)[0]

    def _rate_and_cpu(
        self, size: int, seconds: float, inputs: Iterator[Any], run: Callable[[Any], object]
    ) -> tuple[float, float]:
        """Return rows per second, and the processor time of one row in milliseconds."""
        loop_for(WARM_UP_S, inputs, run)
        before_s = time.process_time()
        count, elapsed_s = loop_for(seconds, inputs, run)
        return count * size / elapsed_s, 1e3 * (time.process_time() - before_s) / (count * size)

    def _prepared_batches(self, size: int) -> Iterator[Any]:
        count = max(len(self._prepared) // size, 1)
        rows = batches(self._prepared, size)
        return cycle([self._on_device(collated(next(rows))) for _ in range(count)])

    def _on_device(self, batch: Any) -> Any:
        if isinstance(batch, dict):
            return {name: tensor.to(self._device) for name, tensor in batch.items()}
        return batch.to(self._device)

    def _forward(self, batch: Any) -> dict[str, np.ndarray[Any, Any]]:
        outputs = self._model.forward(batch)
        named = outputs if isinstance(outputs, dict) else {"output": outputs}
        # Fetching the result waits for the device, as a client does.
        return {name: tensor.cpu().numpy() for name, tensor in named.items()}

    def _preprocess(self, items: Sequence[Any]) -> list[Any]:
        return [self._model.preprocess(item) for item in items]

    def _whole(self, items: Sequence[Any], pool: ThreadPoolExecutor) -> list[Any]:
        rows = list(pool.map(self._model.preprocess, items))
        outputs = self._forward(self._on_device(collated(rows)))
        postprocess = getattr(self._model, "postprocess", lambda row: row)
        split = ({name: values[i] for name, values in outputs.items()} for i in range(len(items)))
        return [postprocess(row) for row in split]


def load_class(folder: Path, name: str) -> Any:
    """Return the class in a model's handler.py."""
    spec = importlib.util.spec_from_file_location(f"bare_{name}", folder / "handler.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def batches(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    """Yield ``size`` items at a time, forever."""
    endless = cycle(items)
    while True:
        yield list(islice(endless, size))


def loop_for(seconds: float, inputs: Iterator[Any], run: Callable[[Any], object]) -> tuple[int, float]:
    """Run over inputs for so long; return how many, and how long it took."""
    started_s, count = time.monotonic(), 0
    while (elapsed_s := time.monotonic() - started_s) < seconds or not count:
        run(next(inputs))
        count += 1
    return count, elapsed_s


def collated(rows: Sequence[Any]) -> Any:
    """Return a batch as `forward` wants it: pictures stacked, token rows padded to the longest, with their mask."""
    if not isinstance(rows[0], dict):
        return torch.from_numpy(np.stack(rows))
    tokens = [torch.from_numpy(row["input_ids"]) for row in rows]
    mask = [torch.ones_like(row) for row in tokens]
    pad = torch.nn.utils.rnn.pad_sequence
    return {"input_ids": pad(tokens, batch_first=True), "attention_mask": pad(mask, batch_first=True)}


if __name__ == "__main__":
    sys.exit(main())
