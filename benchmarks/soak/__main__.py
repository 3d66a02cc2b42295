"""Attack a server for long, beside honest callers: ``make soak``, or ``python -m benchmarks.soak [--quick]``.

Each attack runs in a process of its own, while eight honest clients check every answer and a watch reads memory,
descriptors and readiness. Then the tests' properties run with other seeds. Prints a table, writes a JSON file to
benchmarks/results, and ends with 1 when an answer was wrong, a neighbour failed, memory ran away or the server did not
recover. Linux only.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from tqdm import tqdm

from benchmarks.processes import find_child, resident_bytes
from benchmarks.report import slug
from benchmarks.soak.attacks import ATTACKS, LETS_FAIL
from benchmarks.soak.neighbours import MODEL, neighbours
from benchmarks.soak.properties import Round, run_round
from benchmarks.soak.verdict import MEGABYTE, Figures, document, faults, figures, lines
from benchmarks.soak.watching import watch
from benchmarks.surroundings import surroundings
from examples.server import Server, serving

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
CALM_S = 5.0
RECOVERY_S = 60.0
FIELDS = {"batching.maxBatchSize": "32"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the attacks; return 1 when one of them did harm."""
    parser = argparse.ArgumentParser("python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each attack lasts (60)")
    parser.add_argument("--only", default=",".join(ATTACKS), help="attacks, comma-separated (all)")
    parser.add_argument(
        "--rounds", type=int, default=10, help="of the tests' properties, each with a seed of its own (10)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="5 s each, no properties, no results file")
    options = parser.parse_args(arguments)
    names = options.only.split(",")
    if unknown := [name for name in names if name not in ATTACKS]:
        parser.error(f"unknown attack {unknown[0]}; there are {', '.join(ATTACKS)}")
    print(f"seed {options.seed}", file=sys.stderr)
    rows, harm = asyncio.run(soak(names, 5.0 if options.quick else options.seconds, options.seed))
    print("\n".join(lines(rows)))
    rounds = [] if options.quick else properties(options.rounds, options.seed)
    for name, what in harm.items():
        print(f"HARM  {name}: {'; '.join(what)}")
    if not options.quick:
        publish(document(rows, harm, rounds), options.seconds, options.seed)
    print(f"{len(rows) - len(harm)} of {len(rows)} attacks did no harm.")
    return 1 if harm or any(one.failed for one in rounds) else 0


def properties(count: int, seed: int) -> list[Round]:
    """Run the tests' properties ``count`` times, and say what they found."""
    rounds = [run_round(seed + number) for number in tqdm(range(count), unit=" rounds", disable=None, leave=False)]
    for one in rounds:
        if one.failed:
            print(f"HARM  properties with --hypothesis-seed={one.seed}: {', '.join(one.failed)}")
    print(f"{sum(one.examples for one in rounds)} examples of {rounds[0].properties if rounds else 0} properties.")
    return rounds


async def soak(names: Sequence[str], duration_s: float, seed: int) -> tuple[list[Figures], dict[str, list[str]]]:
    """Run each attack against one server, which must live through all of them."""
    rows: list[Figures] = []
    harm: dict[str, list[str]] = {}
    with serving(HERE / "model", fields=FIELDS) as server:
        calm = await neighbours(server.url, seed, CALM_S)
        calm_mb = proxy_bytes(server) / MEGABYTE
        for number, name in enumerate(tqdm(names, unit=" attacks", disable=None, leave=False)):
            row = await one_attack(server, name, calm.right / CALM_S, seed + number, duration_s)
            rows.append(row)
            if what := faults(row, calm_mb, LETS_FAIL.get(name, frozenset())) + await recovery(server):
                harm[name] = what
    return rows, harm


async def one_attack(server: Server, name: str, calm_per_s: float, seed: int, duration_s: float) -> Figures:
    """Run attacker, neighbours and watch side by side."""
    command = ["-m", "benchmarks.soak.attacks", name, server.url, str(server.pid), str(seed), str(duration_s)]
    attacker = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    assert attacker.stdout is not None
    try:
        await attacker.stdout.readline()
        async with asyncio.TaskGroup() as group:
            honest = group.create_task(neighbours(server.url, seed, duration_s))
            seen = group.create_task(watch(server, duration_s))
            said = group.create_task(attacker.communicate())
    finally:
        if attacker.returncode is None:
            attacker.kill()
    counts: Mapping[str, int] = json.loads(said.result()[0] or b"{}")
    return figures(
        name,
        calm_per_s=calm_per_s,
        tally=honest.result(),
        seen=seen.result(),
        after_bytes=proxy_bytes(server),
        counts=counts,
        duration_s=duration_s,
    )


async def recovery(server: Server) -> list[str]:
    """Wait until the server is ready again; return what is wrong if it is not in time."""
    until_s = time.monotonic() + RECOVERY_S
    async with httpx.AsyncClient(base_url=server.admin_url, timeout=5, trust_env=False) as admin:
        while time.monotonic() < until_s:
            try:
                if (await admin.get("/readyz")).status_code == 200:
                    return []
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.25)
    return [f"not ready again within {RECOVERY_S:.0f} s"]


def proxy_bytes(server: Server) -> int:
    """Return the proxy's resident memory."""
    return resident_bytes(find_child(server.pid, "shoal_proxy"))


def publish(results: Mapping[str, Any], seconds: float, seed: int) -> None:
    """Write the results file."""
    about = {**surroundings(), "model": MODEL, "seconds": seconds, "seed": seed}
    path = RESULTS / f"soak-{slug(about['machine'])}-{about['date']}.json"
    path.write_text(json.dumps({**about, **results}, indent=2) + "\n")
    print(f"written: {path.name}")


if __name__ == "__main__":
    raise SystemExit(main())
