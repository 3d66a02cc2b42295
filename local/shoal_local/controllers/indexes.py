"""The indexes of an Indexed Job: sets of them as its status writes them, and the index of a pod."""

import re
from collections.abc import Iterable
from itertools import groupby

from shoal_local.objects import Object

INDEX = "batch.kubernetes.io/job-completion-index"


def read_indexes(text: str) -> frozenset[int]:
    """Return the indexes in a text such as ``0-3,5``; none in an empty one."""
    spans = [part.partition("-") for part in text.split(",") if part]
    return frozenset(index for first, _, last in spans for index in range(int(first), int(last or first) + 1))


def written(indexes: Iterable[int]) -> str:
    """Return the text for a set of indexes."""
    runs = [[index for _, index in run] for _, run in groupby(enumerate(sorted(indexes)), lambda at: at[1] - at[0])]
    return ",".join(",".join(map(str, run)) if len(run) < 3 else f"{run[0]}-{run[-1]}" for run in runs)


def index_of(pod: Object) -> int:
    """Return the completion index of a pod; -1 where it has none that can be read."""
    return annotated(pod, INDEX, -1)


def annotated(pod: Object, name: str, default: int) -> int:
    """Return the number in an annotation."""
    text = (pod["metadata"].get("annotations") or {}).get(name, "")
    return int(text) if re.fullmatch(r"[0-9]{1,10}", text) else default
