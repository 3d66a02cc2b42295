from typing import Any

import pytest

from shoal_proxy.model.overrides import with_pad_buckets
from shoal_proxy.model.signature import SignatureError, parse_metadata


def metadata(**parameters: Any) -> dict[str, Any]:
    tokens = {"name": "tokens", "datatype": "INT64", "shape": [-1, -1], "parameters": parameters}
    return {
        "name": "embed",
        "inputs": [tokens],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 8]}],
    }


def test_a_deployments_buckets_replace_the_models() -> None:
    padded = metadata(pad_axis=1, pad_buckets="16,32")
    signature = parse_metadata(with_pad_buckets(padded, {"tokens": (64, 128)}))
    assert signature.inputs["tokens"].pad_buckets == (64, 128)
    assert parse_metadata(with_pad_buckets(padded, {})).inputs["tokens"].pad_buckets == (16, 32)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("token", {"pad_axis": 1}, r"\['token'\].*\['tokens'\]"),
        ("tokens", {}, "no pad_axis"),
    ],
)
def test_buckets_without_effect_are_rejected(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(SignatureError, match=message):
        with_pad_buckets(metadata(**parameters), {name: (64,)})
