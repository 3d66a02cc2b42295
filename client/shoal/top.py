"""``shoal top``: what services do now, as a table that follows them."""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shoal.looking import Look, Source, cluster, looks, machine
from shoal.watching.seen import History, Watched
from shoal.watching.words import COLUMNS, cells, document

USUAL = "http://127.0.0.1:9090"
_LEFT = ("service", "state", "rows in the system")


def chosen(options: argparse.Namespace) -> Callable[[], AbstractAsyncContextManager[Source]]:
    """Return what opens the source that the options name."""
    if options.cluster or options.context:
        return partial(cluster, options.context or "", options.namespace or "")
    return partial(machine, options.urls or [USUAL])


def top(options: argparse.Namespace) -> int:
    """Show services until interrupted; with ``--once`` or ``--json`` print what happened in one interval."""
    seen = looks(chosen(options), options.interval)
    asyncio.run(_print_once(seen, options) if options.once or options.json else _follow(seen))
    return 0


async def _print_once(seen: AsyncIterator[Look], options: argparse.Namespace) -> None:
    """Print after the second look: before it there is no rate to show."""
    watched, count = Watched(), 0
    async with aclosing(seen):  # type: ignore[type-var]
        async for look in seen:
            watched.see(look.seen)
            count += 1
            if count == 1:
                continue
            if options.json:
                print(json.dumps(document(watched)), flush=True)
            else:
                Console().print(picture(watched, said=True))
            if options.once:
                return


async def _follow(seen: AsyncIterator[Look]) -> None:
    watched, console = Watched(), Console()
    with Live(console=console, screen=sys.stdout.isatty(), auto_refresh=False) as live:
        async with aclosing(seen):  # type: ignore[type-var]
            async for look in seen:
                if not look.trouble:
                    watched.see(look.seen)
                room = console.height > 6 + 2 * len(watched.services)
                live.update(picture(watched, said=room, last=_last_line(look.trouble)), refresh=True)


def picture(watched: Watched, *, said: bool, last: Text | None = None) -> Group:
    """Return the table, with ``said`` what is said of each service, and a last line."""
    services = watched.sorted if said else ()
    words = [Text(f"{name}: {each.last.says}", style="dim") for name, each in services if each.last.says]
    return Group(table(watched), *words, *([last] if last else []))


def table(watched: Watched) -> Table:
    """Return the table."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in COLUMNS:
        made.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=name != "state")
    for name, history in watched.sorted:
        made.add_row(*_coloured(name, history))
    return made


def _last_line(trouble: str) -> Text:
    return Text(f"nothing is seen: {trouble}", style="red") if trouble else Text("Ctrl-C ends", style="dim")


def _coloured(name: str, history: History) -> list[Text]:
    texts = [Text(cell) for cell in cells(name, history)]
    by_column = dict(zip(COLUMNS, texts, strict=True))
    by_column["service"].stylize("bold")
    by_column["state"].stylize("green" if history.last.well else "red")
    by_column["rows in the system"].stylize("cyan")
    if history.now.refused_per_s:
        by_column["refused/s"].stylize("bold red")
    return texts
