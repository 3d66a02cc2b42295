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
from shoal.watching.words import COLUMNS, LESS, cells, document

USUAL = "http://127.0.0.1:9090"
_WIDE = 140
"""Characters that all columns need; also of what is no terminal."""
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
                console = Console(width=None if sys.stdout.isatty() else _WIDE)
                console.print(picture(watched, width=console.width, said=True))
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
                shown = picture(watched, width=console.width, said=room, last=_last_line(look.trouble))
                live.update(shown, refresh=True)


def picture(watched: Watched, *, width: int, said: bool, last: Text | None = None) -> Group:
    """Return the table, with ``said`` what is said of each service, and a last line; ``width`` in characters."""
    services = watched.sorted if said else ()
    words = [Text(f"{name}: {each.last.says}", style="dim") for name, each in services if each.last.says]
    return Group(table(watched, narrow=width < _WIDE), *words, *([last] if last else []))


def table(watched: Watched, *, narrow: bool) -> Table:
    """Return the table."""
    columns = [name for name in COLUMNS if not (narrow and name in LESS)]
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        made.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=True)
    for name, history in watched.sorted:
        words = _coloured(name, history)
        made.add_row(*(words[column] for column in columns))
    return made


def _last_line(trouble: str) -> Text:
    return Text(f"nothing is seen: {trouble}", style="red") if trouble else Text("Ctrl-C ends", style="dim")


def _coloured(name: str, history: History) -> dict[str, Text]:
    by_column = dict(zip(COLUMNS, map(Text, cells(name, history)), strict=True))
    by_column["service"].stylize("bold")
    by_column["state"].stylize("green" if history.last.well else "red")
    by_column["rows in the system"].stylize("cyan")
    if history.now.refused_per_s:
        by_column["refused/s"].stylize("bold red")
    return by_column
