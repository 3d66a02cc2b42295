"""``shoal top``: the load of services as a live table."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from types import SimpleNamespace

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shoal.discovery import admin_urls
from shoal.sampling import Sample, Source, cluster_source, proxy_source, samples
from shoal.watching.cells import COLUMNS, LESS, cells, document
from shoal.watching.samples import Histories

_WIDE = 160
"""Characters that all columns need; also the width without a terminal."""
_LEFT = ("service", "state", "rows")


def select_source(options: SimpleNamespace) -> Callable[[], AbstractAsyncContextManager[Source]]:
    """Return a function that opens the source of load samples.

    The command's options select the source: a cluster, or proxies on this machine.
    """
    if options.cluster or options.context:
        return partial(cluster_source, options.context or "", options.namespace or "")
    return partial(proxy_source, (lambda: options.urls) if options.urls else admin_urls)


def top(options: SimpleNamespace) -> int:
    """Show the load of services until interrupted; with ``--once`` or ``--json``, print it instead."""
    seen = samples(select_source(options), options.interval)
    asyncio.run(_print(seen, options) if options.once or options.json else _follow(seen))
    return 0


async def _print(seen: AsyncIterator[Sample], options: SimpleNamespace) -> None:
    watched, count = Histories(), 0
    async with aclosing(seen):  # type: ignore[type-var]
        async for sample in seen:
            watched.add(sample.seen, sample.time_s)
            count += 1
            if count == 1:  # rates need two samples
                continue
            if options.json:
                print(json.dumps(document(watched)), flush=True)
            else:
                console = Console(width=None if sys.stdout.isatty() else _WIDE)
                console.print(render(watched, width=console.width, said=True))
            if options.once:
                return


async def _follow(seen: AsyncIterator[Sample]) -> None:
    watched, console = Histories(), Console()
    with Live(console=console, screen=sys.stdout.isatty(), auto_refresh=False) as live:
        async with aclosing(seen):  # type: ignore[type-var]
            async for sample in seen:
                if not sample.error:
                    watched.add(sample.seen, sample.time_s)
                # Explanations only if the table leaves space for them.
                room = console.height > 6 + 2 * len(watched.services)
                last = Text("Ctrl-C ends", style="dim")
                # The last samples stay visible while the source fails.
                if sample.error:
                    last = Text(f"no data: {sample.error}", style="red")
                live.update(render(watched, width=console.width, said=room, last=last), refresh=True)


def render(watched: Histories, *, width: int, said: bool, last: Text | None = None) -> Group:
    """Return the table of services, with lines of text below it.

    Args:
        watched: the services.
        width: width of the terminal in characters.
        said: whether to add a line that explains each service's state.
        last: the last line; None for no line.
    """
    services = watched.sorted if said else ()
    words = [Text(f"{name}: {each.last.says}", style="dim") for name, each in services if each.last.says]
    return Group(table(watched, narrow=width < _WIDE), *words, *([last] if last else []))


def table(watched: Histories, *, narrow: bool) -> Table:
    """Return the table of services; a ``narrow`` table omits some columns."""
    columns = [name for name in COLUMNS if not (narrow and name in LESS)]
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        made.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=True)
    for name, history in watched.sorted:
        texts = dict(zip(COLUMNS, map(Text, cells(name, history)), strict=True))
        texts["service"].stylize("bold")
        texts["state"].stylize("green" if history.last.well else "red")
        texts["rows"].stylize("cyan")
        if history.now.refused_per_s:
            texts["rejected/s"].stylize("bold red")
        made.add_row(*(texts[column] for column in columns))
    return made
