"""A row's error has the status that the model gave it, and TorchServe's name for that."""

import pytest

from shoal_proxy.codecs.torchserve import TorchServe
from shoal_proxy.errors import RowsFailed
from shoal_schema.wire.row_errors import RowError
from tests.proxy.signatures import document


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, "ModelNotFoundException"),
        (405, "MethodNotAllowedException"),
        (406, "BadRequestException"),
        (413, "TooLargeFrameException"),
        (501, "InternalServerException"),
    ],
)
def test_a_status_that_torchserve_names_has_its_name(status: int, kind: str) -> None:
    reply = TorchServe().error(RowsFailed([RowError(0, status, "m")]))

    assert (reply.status, document(reply)["code"], document(reply)["type"]) == (status, status, kind)
