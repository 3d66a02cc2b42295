"""All attacks by name, and the process that runs one: ``python -m benchmarks.soak.attacks NAME``.

An attacker has a process of its own, so that its work is not its neighbours'.
"""

import argparse
import asyncio
import json
import resource
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

from benchmarks.processes import find_child
from benchmarks.soak import on_connections, on_requests
from benchmarks.soak.target import Attack, Target

ATTACKS: Mapping[str, Attack] = {
    attack.__name__.replace("_", "-"): attack
    for attack in (
        on_requests.fuzzing,
        on_connections.smuggling,
        on_connections.silent,
        on_connections.dripping,
        on_connections.declared,
        on_connections.huge_heads,
        on_connections.unread,
        on_connections.pipelined,
        on_requests.deadlines,
        on_requests.padding,
        on_requests.many_rows,
        on_requests.many_keys,
        on_requests.leaving,
        on_requests.commands,
        on_requests.killing,
    )
}
BEGINS = "begins"
"""The attacker's first line: its imports are done."""
LETS_FAIL: Mapping[str, frozenset[str]] = {"killing": frozenset({"503"})}
"""Which failures of a neighbour an attack may cause: what a dying runtime was running is answered 503."""


async def attack(name: str, url: str, serving_pid: int, seed: int, duration_s: float) -> Counter[str]:
    """Attack for so long; return what was sent and seen."""
    target = Target(url, lambda: find_child(serving_pid, "shoal_runtime"), Random(seed), time.monotonic() + duration_s)
    await ATTACKS[name](target)
    return target.count


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one attack; say when it begins, and its counts as JSON when it is over."""
    parser = argparse.ArgumentParser("python -m benchmarks.soak.attacks", description=__doc__)
    parser.add_argument("name", choices=list(ATTACKS))
    parser.add_argument("url")
    parser.add_argument("serving_pid", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("seconds", type=float)
    options = parser.parse_args(arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65536), most))
    print(BEGINS, flush=True)
    counts = asyncio.run(attack(options.name, options.url, options.serving_pid, options.seed, options.seconds))
    print(json.dumps(dict(counts)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
