"""``shoal top``: the load of services as a live table."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from types import SimpleNamespace
from typing import Literal

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shoal.discovery import admin_urls
from shoal.sampling import Sample, Source, cluster_source, proxy_source, samples
from shoal.watching.cells import COLUMNS, cells, document, fitting
from shoal.watching.samples import Histories

_WIDE = 160
"""Width without a terminal, in characters."""
_WRAPPED = ("service", "state")
HISTORY = COLUMNS.index("rows")
_LEFT = ("service", "state", "rows")


def select_source(options: SimpleNamespace) -> Callable[[], AbstractAsyncContextManager[Source]]:
    """Return a function that opens the source of load samples.

    The command's options select the source: a cluster, or proxies on this machine.
    """
    if options.cluster or options.context:
        return partial(cluster_source, options.context or "", options.namespace or "")
    return partial(proxy_source, (lambda: options.urls) if options.urls else admin_urls)


def top(options: SimpleNamespace) -> int:
    """Show the load of services until interrupted; into a pipe, or with ``--once`` or ``--json``, print it instead."""
    seen = samples(select_source(options), options.interval)
    printed = options.once or options.json or not sys.stdout.isatty()
    asyncio.run(_print(seen, options) if printed else _follow(seen))
    return 0


async def _print(seen: AsyncIterator[Sample], options: SimpleNamespace) -> None:
    watched, count = Histories(), 0
    async with aclosing(seen):  # type: ignore[type-var]
        async for sample in seen:
            if sample.error:
                print(f"no data: {sample.error}", file=sys.stderr)
                continue
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
    with Live(console=console, screen=True, auto_refresh=False) as live:
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
        said: whether to add lines that explain each service's state, and have the history that the table omits.
        last: the last line; None for no line.
    """
    rows = {name: cells(name, each) for name, each in watched.sorted}
    kept = fitting(list(rows.values()), width)
    words = []
    for name, each in watched.sorted if said else ():
        if each.last.says:
            words.append(Text(f"{name}: {each.last.says}", style="dim"))
        if HISTORY not in kept and rows[name][HISTORY].strip():
            words.append(Text(f"{name}: rows {rows[name][HISTORY]}", style="cyan"))
    return Group(table(watched, rows, kept), *words, *([last] if last else []))


def table(watched: Histories, rows: Mapping[str, Sequence[str]], kept: Sequence[int]) -> Table:
    """Return the table of services, with the cells of the ``kept`` columns of their ``rows``."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for at in kept:
        # Only names and states wrap, so that no header is cut.
        justify: Literal["left", "right"] = "left" if COLUMNS[at] in _LEFT else "right"
        wrapped = COLUMNS[at] in _WRAPPED
        made.add_column(COLUMNS[at], justify=justify, no_wrap=not wrapped, overflow="fold", min_width=len(COLUMNS[at]))
    for name, history in watched.sorted:
        texts = dict(zip(COLUMNS, map(Text, rows[name]), strict=True))
        texts["service"].stylize("bold")
        texts["state"].stylize("green" if history.last.well else "red")
        texts["rows"].stylize("cyan")
        if history.now.refused_per_s:
            texts["rejected/s"].stylize("bold red")
        made.add_row(*(texts[COLUMNS[at]] for at in kept))
    return made
