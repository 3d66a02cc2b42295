"""Completion indexes of an Indexed Job: parsing and formatting."""

import re
from collections.abc import Iterable
from itertools import groupby

from shoal_local.objects import Object

INDEX = "batch.kubernetes.io/job-completion-index"


def parse_indexes(text: str) -> frozenset[int]:
    """Return the indexes in a text such as ``0-3,5``; none in an empty text."""
    spans = [part.partition("-") for part in text.split(",") if part]
    return frozenset(index for first, _, last in spans for index in range(int(first), int(last or first) + 1))


def format_indexes(indexes: Iterable[int]) -> str:
    """Return indexes as text: ``0-3,5``; two consecutive ones are ``4,5``."""
    # In a run of consecutive numbers, number minus position is constant.
    runs = [[index for _, index in run] for _, run in groupby(enumerate(sorted(indexes)), lambda at: at[1] - at[0])]
    return ",".join(",".join(map(str, run)) if len(run) < 3 else f"{run[0]}-{run[-1]}" for run in runs)


def index_of(pod: Object) -> int:
    """Return the completion index of a pod, or -1 if it has no valid one."""
    return annotated(pod, INDEX, -1)


def annotated(pod: Object, name: str, default: int) -> int:
    """Return the number in an annotation, or the default if it is missing or invalid."""
    text = (pod["metadata"].get("annotations") or {}).get(name, "")
    return int(text) if re.fullmatch(r"[0-9]{1,10}", text) else default
