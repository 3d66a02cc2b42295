"""The codec of each client protocol of the HTTP port, by the protocol's label."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shoal_proxy.codecs.base import Codec
from shoal_proxy.codecs.invocations import Invocations
from shoal_proxy.codecs.texts import Embeddings, Rerank
from shoal_proxy.codecs.torchserve import TorchServe
from shoal_proxy.codecs.v1 import V1
from shoal_proxy.codecs.v2 import V2
from shoal_schema.interfaces.protocols import HTTP
from shoal_schema.resource.model import ExtraColumns


@dataclass(frozen=True)
class CodecOptions:
    """Settings of a service for its codecs; ``max_body_bytes`` also limits padding."""

    model_name: str = ""
    max_body_bytes: int = 0
    extra_columns: ExtraColumns = ExtraColumns.AUTO


CODECS: Final[dict[str, Callable[[CodecOptions], Codec]]] = {
    "v1": lambda options: V1(options.max_body_bytes, ignore_extra=options.extra_columns is ExtraColumns.IGNORE),
    "v2": lambda options: V2(ignore_extra=options.extra_columns is ExtraColumns.IGNORE),
    "torchserve": lambda options: TorchServe(ignore_extra=options.extra_columns is ExtraColumns.IGNORE),
    "invocations": lambda options: Invocations(
        options.max_body_bytes, ignore_extra=options.extra_columns is not ExtraColumns.REJECT
    ),
    "embeddings": lambda options: Embeddings(options.model_name),
    "rerank": lambda options: Rerank(options.model_name, options.max_body_bytes),
}


def codec_for(path: str) -> Codec:
    """Return the codec for errors on a path outside the infer routes."""
    return CODECS[HTTP.owner(path).label](CodecOptions())
