"""Codecs for language models: OpenAI's embeddings, Cohere's and Jina's reranking.

A model supports them by its signature. Embeddings: one input of texts, and one output of floating-point numbers [rows,
width]. Reranking: inputs ``query`` and ``document`` of texts, and an output ``score`` of one number per row. An output
``tokens``, one integer per row, is reported as the request's usage.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from shoal_proxy.codecs import raw
from shoal_proxy.codecs.base import (
    DecodedRequest,
    HttpResponse,
    InferCall,
    check_rows,
    error_document,
    json_response,
    parse_json,
    shown,
)
from shoal_proxy.codecs.tensors import widen_bf16
from shoal_proxy.errors import BodyTooLarge, InvalidRequest, NotFound, ProxyError
from shoal_proxy.model.signature import InputSpec, ModelSignature, OutputSpec
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.elements import bytes_array

QUERY: Final = "query"
DOCUMENT: Final = "document"
SCORE: Final = "score"
TOKENS: Final = "tokens"
_FLOATING: Final = frozenset({"FP16", "BF16", "FP32", "FP64"})
_TOKEN_IDS: Final = (
    '"input" has token ids, but this model expects texts. Send the strings themselves'
    " (in LangChain: check_embedding_ctx_length=False)"
)


class Embeddings:
    """Codec of ``POST /v1/embeddings``."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name

    def decode(self, call: InferCall, signature: ModelSignature) -> DecodedRequest:
        """Decode the texts to embed, one per row.

        The decoded request's style records whether the client wants base64.
        """
        document = _document(call, self._model_name)
        spec, output = raw.bytes_input(signature), _embedding(signature)
        if spec is None or not _takes_texts(spec, signature) or output is None:
            raise InvalidRequest(
                f"model {self._model_name!r} does not support embeddings: they need one input of texts and one"
                " output of floating-point numbers [rows, width]. See GET /v2/models/NAME for its signature"
            )
        encoding = document.get("encoding_format")
        if encoding not in (None, "float", "base64"):
            raise InvalidRequest(f'encoding_format must be "float" or "base64", not {shown(encoding)}')
        dimensions, width = document.get("dimensions"), output.shape[1]
        if dimensions is not None and (type(dimensions) is not int or dimensions != width):
            raise InvalidRequest(f"dimensions must be {width} for this model, not {shown(dimensions)}")
        given = document.get("input")
        texts = [given] if type(given) is str else given
        if type(texts) is not list or not texts:
            raise InvalidRequest(f'"input" must be a string or a list of strings, not {shown(given)}')
        check_rows(len(texts))
        kinds = set(map(type, texts))
        # Some clients tokenize texts themselves, for a model with a known tokenizer.
        if kinds <= {int, list}:
            raise InvalidRequest(_TOKEN_IDS)
        if kinds != {str}:
            raise InvalidRequest('"input" must be a string or a list of strings')
        rows = _rows_of_texts(spec, [text.encode() for text in texts])
        return DecodedRequest({spec.name: rows}, len(texts), encoding == "base64")

    def encode(
        self,
        decoded: DecodedRequest,
        outputs: Mapping[str, Array],
        lengths: Mapping[str, Sequence[int]],
        signature: ModelSignature,
    ) -> HttpResponse:
        """Return OpenAI's list of embeddings, in the order of the texts."""
        spec = _embedding(signature)
        assert spec is not None  # checked by `decode`
        array = widen_bf16(outputs[spec.name]) if spec.datatype == "BF16" else outputs[spec.name]
        rows = np.ascontiguousarray(array, dtype="<f4")
        values: list[Any] = list(rows)
        if decoded.style:
            # OpenAI's base64 form: little-endian float32.
            values = [b64encode(row.tobytes()).decode("ascii") for row in rows]
        data = [{"object": "embedding", "index": number, "embedding": value} for number, value in enumerate(values)]
        return json_response(
            200, {"object": "list", "data": data, "model": self._model_name, "usage": _usage(outputs, signature)}
        )

    def error(self, error: ProxyError) -> HttpResponse:
        """Return OpenAI's error object as a response."""
        kind = "invalid_request_error" if error.status < 500 else "server_error"
        document = {"message": error.message, "type": kind, "param": None, "code": None}
        return json_response(error.status, {**error_document(error), "error": document})


class Rerank:
    """Codec of ``POST /v1/rerank`` and ``/v2/rerank``."""

    def __init__(self, model_name: str, max_query_bytes: int) -> None:
        self._model_name = model_name
        self._max_query_bytes = max_query_bytes
        """Limit on the query's size times the number of documents."""

    def decode(self, call: InferCall, signature: ModelSignature) -> DecodedRequest:
        """Decode query and documents: each row is the query with one document."""
        document = _document(call, self._model_name)
        query, against = signature.inputs.get(QUERY), signature.inputs.get(DOCUMENT)
        score = signature.outputs.get(SCORE)
        # Both inputs take texts, all others are optional, and the score is one number per row.
        fits = all(
            _takes_texts(spec, signature) if name in (QUERY, DOCUMENT) else spec.optional
            for name, spec in signature.inputs.items()
        )
        if score is None or score.datatype not in _FLOATING or score.shape[1:] not in ((), (1,)):
            fits = False
        if query is None or against is None or not fits:
            raise InvalidRequest(
                f"model {self._model_name!r} does not support reranking: it needs inputs 'query' and 'document'"
                " of texts, and an output 'score' of one number per row"
            )
        question = document.get("query")
        if type(question) is not str:
            raise InvalidRequest(f'"query" must be a string, not {shown(question)}')
        documents = document.get("documents")
        if type(documents) is not list or not documents:
            raise InvalidRequest(f'"documents" must be a list of texts, not {shown(documents)}')
        check_rows(len(documents))
        texts: list[bytes] = []
        for number, each in enumerate(documents):
            # Cohere's clients send strings, Jina's also objects.
            text = each.get("text") if type(each) is dict else each
            if type(text) is not str:
                raise InvalidRequest(f'document {number} must be a string or {{"text": "..."}}, not {shown(each)}')
            texts.append(text.encode())
        encoded = question.encode()
        if len(encoded) * len(texts) > self._max_query_bytes:
            raise BodyTooLarge(
                f"the query of {len(encoded)} bytes, repeated for {len(texts)} documents, is over the limit of"
                f" {self._max_query_bytes} bytes. Send fewer documents, or a shorter query"
            )
        inputs = {QUERY: _rows_of_texts(query, [encoded] * len(texts)), DOCUMENT: _rows_of_texts(against, texts)}
        return DecodedRequest(inputs, len(texts), _RerankStyle(document, texts))

    def encode(
        self,
        decoded: DecodedRequest,
        outputs: Mapping[str, Array],
        lengths: Mapping[str, Sequence[int]],
        signature: ModelSignature,
    ) -> HttpResponse:
        """Return the indices of the documents by falling score."""
        scores, wanted = outputs[SCORE].reshape(-1), decoded.style
        if signature.outputs[SCORE].datatype == "BF16":
            scores = widen_bf16(scores)
        # Stable, so that documents with equal scores keep their order.
        order = np.argsort(-scores.astype(np.float64), kind="stable")[: wanted.top_n]
        results: list[dict[str, Any]] = [{"index": int(at), "relevance_score": scores[at]} for at in order]
        if wanted.texts is not None:
            for result in results:
                result["document"] = {"text": wanted.texts[result["index"]].decode()}
        return json_response(200, {"model": self._model_name, "results": results, "usage": _usage(outputs, signature)})

    def error(self, error: ProxyError) -> HttpResponse:
        """Return Cohere's error object as a response."""
        document = error_document(error)
        document["message"] = document.pop("error")
        return json_response(error.status, document)


class _RerankStyle:
    """The requested number of results, and the document texts if requested."""

    __slots__ = ("texts", "top_n")

    def __init__(self, document: dict[str, Any], texts: list[bytes]) -> None:
        top_n, with_texts = document.get("top_n"), document.get("return_documents")
        if top_n is not None and (type(top_n) is not int or top_n < 1):
            raise InvalidRequest(f'"top_n" must be an integer of at least 1, not {shown(top_n)}')
        if with_texts is not None and type(with_texts) is not bool:
            raise InvalidRequest(f'"return_documents" must be true or false, not {shown(with_texts)}')
        self.top_n: int = len(texts) if top_n is None else top_n
        self.texts: list[bytes] | None = texts if with_texts else None


def _document(call: InferCall, model_name: str) -> dict[str, Any]:
    document = parse_json(call.body)
    if type(document) is not dict:
        raise InvalidRequest(f"the body must be a JSON object, not {shown(document)}")
    model = document.get("model")
    if model is not None and model != model_name:
        raise NotFound(f"unknown model {shown(model)}; this server has {model_name!r}")
    return document


def _rows_of_texts(spec: InputSpec, texts: list[bytes]) -> Array:
    return bytes_array(texts, (len(texts),) + (1,) * (len(spec.shape) - 1))


def _takes_texts(spec: InputSpec, signature: ModelSignature) -> bool:
    if spec.datatype != "BYTES" or not signature.batches or not {1, -1}.issuperset(spec.shape[1:]):
        return False
    return not spec.content_types or any(raw.accepts(kind, "text/plain") for kind in spec.content_types)


def _embedding(signature: ModelSignature) -> OutputSpec | None:
    """Return the only output that can be an embedding; None if several or none."""
    found = [
        spec
        for spec in signature.outputs.values()
        if spec.datatype in _FLOATING and len(spec.shape) == 2 and spec.unpad_axis is None
    ]
    return found[0] if len(found) == 1 else None


def _usage(outputs: Mapping[str, Array], signature: ModelSignature) -> dict[str, int]:
    used, spec = outputs.get(TOKENS), signature.outputs.get(TOKENS)
    counts = used is not None and used.dtype.kind in "iu" and spec is not None and len(spec.shape) == 1
    tokens = int(used.sum()) if used is not None and counts else 0
    return {"prompt_tokens": tokens, "total_tokens": tokens}
