"""Signatures that several tests speak of."""

from shoal.wire.signature import Signature, Tensor


def signature(inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...] = ()) -> Signature:
    return Signature("model", ("1",), inputs, outputs or (Tensor("y", "FP32", (-1,)),))


ADDER = signature((Tensor("x", "FP32", (-1, 3)),), (Tensor("y", "FP32", (-1, 3)),))
PICTURES = signature(
    (Tensor("image", "BYTES", (-1,), content_types=("image/jpeg", "image/png")),),
    (Tensor("label", "BYTES", (-1, 2)), Tensor("probability", "FP32", (-1, 2))),
)
TEXTS = signature((Tensor("text", "BYTES", (-1,), content_types=("text/plain",)),))
JSON = signature(
    (Tensor("question", "BYTES", (-1,), content_types=("application/json",)),),
    (Tensor("answer", "BYTES", (-1,), content_types=("application/json",)),),
)
TWO = signature((Tensor("a", "INT64", (-1, 2)), Tensor("b", "FP32", (-1,))))
MASKED = signature((Tensor("ids", "INT64", (-1, -1)), Tensor("mask", "INT64", (-1, -1), optional=True)))
TIME_FIRST = signature((Tensor("x", "FP32", (5, -1), batch_dim=1),), (Tensor("y", "FP32", (5, -1), batch_dim=1),))
UNBATCHED = signature((Tensor("x", "FP32", (2, 2)),), (Tensor("y", "FP32", (2,)),))
