"""The error table of docs/reference/protocols.md against the errors that there are."""

import re
from collections.abc import Iterator
from pathlib import Path

from shoal_proxy.errors import MaybeExecuted, ProxyError, RowsFailed

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
