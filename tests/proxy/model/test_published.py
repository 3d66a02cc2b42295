"""What a proxy's own metadata say of its model: all that clients match and write rows by."""

from shoal_schema.wire.columns import encode_columns
from tests import plain
from tests.fakes import FakeRuntime, running_proxy, tensor

INPUTS = [
    tensor("input-0", "FP64", [-1, 2], columns=encode_columns(["größe", "a"]), nullable=True),
    tensor("text", "BYTES", [-1], content_type="text/plain", nullable=True, optional=True),
    tensor("when", "BYTES", [-1], content_type="text/plain", logical_type="datetime", unit="ms"),
]


OUTPUTS = [tensor("probabilities", "FP64", [-1, 2], columns=encode_columns(["no", "yes"]))]


def test_clients_are_published_columns_nulls_and_dates() -> None:
    with running_proxy(lambda: FakeRuntime(inputs=INPUTS, outputs=OUTPUTS)) as running:
        published = plain.get(f"{running.url}/v2/models/double").json()

    assert (published["inputs"], published["outputs"]) == (INPUTS, OUTPUTS)
