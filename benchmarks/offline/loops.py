"""Score rows without Shoal: ``python -m benchmarks.offline.loops KIND MODEL INPUT OUTPUT --size N``.

``search`` finds a loop's best batch size; ``bare`` prepares and computes in one thread, ``loader`` prepares in two
workers of a DataLoader, ``ray`` runs two actors of Ray Data. Each writes its answers as Parquet and prints one line of
JSON: when its model was ready, and when all was written.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

from benchmarks.bare import collated, load_class
from shoal_runtime import Context

ROOT = Path(__file__).parents[2]
CPUS = 2
SIZES = (4, 8, 16, 32)
SEARCH_ROWS = 32
ANSWERS = {"cat": "class", "embed": "embedding"}
"""Of each model what is compared."""


class Scorer:
    """An example's own class."""

    def __init__(self, name: str) -> None:
        folder = ROOT / "examples" / name / "model"
        self.model = load_class(folder, name.capitalize())()
        self.model.load(Context(folder, torch.device("cpu"), None, max(SIZES)))

    def answers(self, rows: Sequence[Any]) -> np.ndarray[Any, Any]:
        """Compute rows that are prepared."""
        return self.computed(collated(rows))

    def computed(self, batch: Any) -> np.ndarray[Any, Any]:
        """Compute a batch."""
        with torch.inference_mode():
            outputs = self.model.forward(batch)
        found: np.ndarray[Any, Any] = (outputs["class"] if isinstance(outputs, dict) else outputs).numpy()
        return found


class Prepared(torch.utils.data.Dataset[Any]):
    """Rows, each prepared when it is asked for."""

    def __init__(self, scorer: Scorer, items: Sequence[Any]) -> None:
        self._scorer = scorer
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, row: int) -> Any:
        """Read and prepare one."""
        return self._scorer.model.preprocess(content(self._items[row]))


def content(item: Any) -> Any:
    """Return what a file holds, or the text itself."""
    return item.read_bytes() if isinstance(item, Path) else item


def items_of(source: Path) -> tuple[list[str], list[Any]]:
    """Return of every row its name, and its file or text."""
    if source.is_dir():
        files = sorted(source.iterdir())
        return [file.name for file in files], list(files)
    table = parquet.read_table(source)
    return [str(each) for each in table["id"].to_pylist()], table["text"].to_pylist()


def search(scorer: Scorer, items: Sequence[Any]) -> int:
    """Return the quickest batch size on some rows from the middle, prepared before."""
    rows = Prepared(scorer, items[len(items) // 2 :][:SEARCH_ROWS])
    ready = [rows[number] for number in range(len(rows))]
    scorer.answers(ready[: SIZES[0]])
    seconds: dict[int, float] = {}
    for size in SIZES:
        begun_s = time.monotonic()
        for at in range(0, len(ready), size):
            scorer.answers(ready[at : at + size])
        seconds[size] = time.monotonic() - begun_s
    return min(seconds, key=lambda size: seconds[size])


def loop(options: argparse.Namespace) -> dict[str, Any]:
    """Run a loop of torch."""
    torch.set_num_threads(CPUS)
    scorer = Scorer(options.model)
    names, items = items_of(options.input)
    if options.kind == "search":
        return {"size": search(scorer, items)}
    rows = Prepared(scorer, items)
    ready_s = time.monotonic()
    if options.kind == "loader":
        batches = torch.utils.data.DataLoader(rows, options.size, num_workers=CPUS, collate_fn=collated)
        answers = [scorer.computed(batch) for batch in batches]
    else:
        starts = range(0, len(rows), options.size)
        parts = (range(at, min(at + options.size, len(rows))) for at in starts)
        answers = [scorer.answers([rows[row] for row in part]) for part in parts]
    write(options.output, names, np.concatenate(answers))
    return {"ready_s": ready_s, "ended_s": time.monotonic()}


def write(path: Path, names: Sequence[str], answers: np.ndarray[Any, Any]) -> None:
    """Write answers beside their rows' names."""
    column = pa.FixedSizeListArray.from_arrays(pa.array(answers.reshape(-1)), answers.shape[1])
    parquet.write_table(pa.table([pa.array(names), column], names=["name", "answer"]), path)


class Actor:
    """A model in one of Ray Data's actors, which share the processors."""

    def __init__(self, name: str) -> None:
        torch.set_num_threads(1)
        self._scorer = Scorer(name)
        self._ready_s = time.monotonic()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Score a batch."""
        rows = [self._scorer.model.preprocess(each) for each in batch["item"]]
        ready = np.full(len(rows), self._ready_s)
        return {"name": batch["name"], "answer": self._scorer.answers(rows), "ready_s": ready}


def with_ray(options: argparse.Namespace) -> dict[str, Any]:
    """Run Ray Data; its first actor's model is ready when the time begins, as with the others."""
    import ray  # noqa: PLC0415 (in an environment of its own)

    ray.init(num_cpus=CPUS, include_dashboard=False, log_to_driver=False, logging_level="error")
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        if options.input.is_dir():
            data = ray.data.read_binary_files(str(options.input), include_paths=True)
            data = data.rename_columns({"path": "name", "bytes": "item"})
        else:
            data = ray.data.read_parquet(str(options.input)).rename_columns({"id": "name", "text": "item"})
        data = data.repartition(4 * CPUS)
        actors = ray.data.ActorPoolStrategy(size=CPUS)
        arguments = {"fn_constructor_args": (options.model,), "batch_size": options.size, "num_cpus": 0.5}
        data.map_batches(Actor, compute=actors, **arguments).write_parquet(str(options.output))
    finally:
        ended_s = time.monotonic()
        ray.shutdown()
    ready = parquet.read_table(options.output, columns=["ready_s"])["ready_s"].to_pylist()
    return {"ready_s": min(ready), "ended_s": ended_s}


def main() -> int:
    """Run one of them."""
    parser = argparse.ArgumentParser("python -m benchmarks.offline.loops", description=__doc__)
    parser.add_argument("kind", choices=["search", "bare", "loader", "ray"])
    parser.add_argument("model", choices=ANSWERS)
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--size", type=int, default=16)
    options = parser.parse_args()
    print(json.dumps(with_ray(options) if options.kind == "ray" else loop(options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
