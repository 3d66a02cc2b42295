"""The tables of docs/reference/protocols.md and access.md against the code."""

import re
from collections.abc import Iterator
from pathlib import Path

from shoal_proxy.errors import MaybeExecuted, ProxyError, RowsFailed
from shoal_schema.interfaces.protocols import GRPC, HTTP, expand

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "protocols.md"
ANOTHER_ERRORS = (MaybeExecuted, RowsFailed)
"""They have the status of their error."""
METHOD_NOT_ALLOWED = 405
"""Starlette's, for our routes."""


def kinds(base: type[ProxyError]) -> Iterator[type[ProxyError]]:
    yield base
    for each in base.__subclasses__():
        yield from kinds(each)


def test_every_status_that_the_proxy_can_send_stands_in_the_table_and_no_other() -> None:
    table = PAGE.read_text().partition("\n## Errors")[2]
    listed = {int(status) for status in re.findall(r"^\| (\d{3}) \|", table, re.MULTILINE)}

    sent = {kind.status for kind in kinds(ProxyError) if kind not in ANOTHER_ERRORS}
    assert listed == sent | {METHOD_NOT_ALLOWED}


def paths_in(text: str) -> set[str]:
    """Return the paths in a page's code spans, with optional parts expanded."""
    spans = re.findall(r"`(?:[A-Z]+ )?(/[^`\s]*)`", text.replace("{m}", "{model}").replace("{v}", "{version}"))
    return {path for span in spans for path in expand(span)}


def test_the_tables_list_the_paths_of_every_protocol_and_no_other() -> None:
    page, triton = PAGE.read_text(), PAGE.with_name("triton.md").read_text()
    rows = dict(re.findall(r"^\| \[([^]]+)\][^|]*\| ([^|]*) \|", page, re.MULTILINE))
    pages = "".join(re.findall(r"^\| \[[^|]*\|[^|]*\|([^|]*)\|$", page, re.MULTILINE))
    served = {path for each in HTTP.pages for path in expand(each.path)} | {check.path for check in HTTP.checks}

    assert {name: paths_in(rows[name]) for name in rows if name != GRPC.title} == {
        each.title: set(each.infer_paths) for each in HTTP.protocols
    }
    assert paths_in(pages) <= served <= paths_in(pages) | paths_in(triton)
    assert re.findall(r"`(\w+)`", rows[GRPC.title]) == [path.rpartition("/")[2] for path in GRPC.infer]


def test_the_access_page_lists_the_open_paths() -> None:
    cells = re.findall(r"^\| (.*`Server.*|.*`/ping`.*?) \|", PAGE.with_name("access.md").read_text(), re.MULTILINE)
    is_open = {path for each in HTTP.pages if each.is_open for path in expand(each.path)}

    assert paths_in(cells[0]) == is_open | {check.path for check in HTTP.checks}
    assert set(re.findall(r"`(\w+)`", cells[1])) == {each.handler for each in GRPC.pages if each.is_open}
