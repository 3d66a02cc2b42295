"""Buckets bound the longest row of a request, wherever it stands."""

import pytest

from shoal_proxy.codecs.v1 import V1
from shoal_proxy.errors import InvalidRequest
from tests.fakes import tensor
from tests.proxy.signatures import call, signature

TOKENS = signature([tensor("ids", "INT64", [-1, -1], pad_axis=1, pad_buckets="2,4")])
SHORT, LONG = [1], [1, 2, 3, 4, 5]


@pytest.mark.parametrize("rows", [[SHORT, LONG], [LONG, SHORT]])
def test_one_row_beyond_the_last_bucket_is_rejected_beside_short_ones(rows: list[list[int]]) -> None:
    with pytest.raises(InvalidRequest, match="has length 5 along axis 1; the longest allowed is 4"):
        V1().decode(call({"instances": rows}), TOKENS)
