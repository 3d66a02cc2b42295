"""Embeddings and reranking, as OpenAI's, Cohere's and Jina's clients write them."""

from base64 import b64decode
from typing import Any

import numpy as np
import pytest

from shoal_proxy.codecs.base import DecodedRequest
from shoal_proxy.codecs.texts import Embeddings, Rerank
from shoal_proxy.errors import BodyTooLarge, InvalidRequest, NotFound, Overloaded, ProxyError, RowsFailed
from shoal_proxy.model.signature import ModelSignature
from shoal_schema.interfaces.metrics import RejectionReason
from shoal_schema.wire.row_errors import RowError
from tests.fakes import tensor
from tests.proxy.signatures import call, document, signature

TEXT = tensor("text", "BYTES", [-1], content_type="text/plain")
VECTOR = tensor("embedding", "FP32", [-1, 3])
TOKENS = tensor("tokens", "INT64", [-1])
EMBEDS = signature([TEXT], [VECTOR, TOKENS])
PAIR = [tensor("query", "BYTES", [-1], content_type="text/plain"), tensor("document", "BYTES", [-1, 1])]
RERANKS = signature(PAIR, [tensor("score", "FP32", [-1])])
ROWS = np.array([[1, 0.1, -2], [0, float("nan"), 3]], np.float32)


def embed(body: Any, model: ModelSignature = EMBEDS) -> DecodedRequest:
    return Embeddings("m").decode(call(body), model)


def rerank(body: Any, model: ModelSignature = RERANKS, *, most_bytes: int = 1000) -> DecodedRequest:
    return Rerank("m", most_bytes).decode(call(body), model)


def query(**more: Any) -> dict[str, Any]:
    return {"query": "fish", "documents": ["a", "b", "c"], **more}


@pytest.mark.parametrize(("given", "rows"), [("fish", [b"fish"]), (["a", "", "große"], [b"a", b"", "große".encode()])])
def test_each_text_is_a_row(given: Any, rows: list[bytes]) -> None:
    decoded = embed({"input": given, "model": "m", "user": "u"})
    assert (decoded.inputs["text"].tolist(), decoded.rows) == (rows, len(rows))


def test_the_text_takes_the_shape_of_the_models_input() -> None:
    decoded = embed({"input": ["a", "b"]}, signature([tensor("t", "BYTES", [-1, 1])], [VECTOR]))
    assert decoded.inputs["t"].shape == (2, 1)


def test_floats_come_as_openai_has_them() -> None:
    decoded_reply = document(Embeddings("m").encode(embed({"input": ["a", "b"]}), {"embedding": ROWS}, {}, EMBEDS))
    assert (decoded_reply["object"], decoded_reply["model"]) == ("list", "m")
    assert decoded_reply["data"][0] == {"object": "embedding", "index": 0, "embedding": [1.0, 0.1, -2.0]}
    assert decoded_reply["data"][1] == {"object": "embedding", "index": 1, "embedding": [0.0, None, 3.0]}
    assert decoded_reply["usage"] == {"prompt_tokens": 0, "total_tokens": 0}


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
def test_base64_is_little_endian_fp32(dtype: str) -> None:
    decoded = embed({"input": ["a", "b"], "encoding_format": "base64", "dimensions": 3})
    decoded_reply = document(Embeddings("m").encode(decoded, {"embedding": ROWS[:, ::1].astype(dtype)}, {}, EMBEDS))
    numbers = [np.frombuffer(b64decode(each["embedding"]), "<f4") for each in decoded_reply["data"]]
    np.testing.assert_allclose(numbers, ROWS, rtol=1e-3)


def test_bf16_is_widened() -> None:
    model = signature([TEXT], [tensor("embedding", "BF16", [-1, 2])])
    bits = (np.array([[1.5, -2]], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    decoded_reply = document(Embeddings("m").encode(embed({"input": "a"}, model), {"embedding": bits}, {}, model))
    assert decoded_reply["data"][0]["embedding"] == [1.5, -2]


def test_tokens_are_counted_if_the_model_reports_them() -> None:
    outputs = {"embedding": ROWS, "tokens": np.array([4, 3])}
    decoded_reply = document(Embeddings("m").encode(embed({"input": ["a", "b"]}), outputs, {}, EMBEDS))
    assert decoded_reply["usage"] == {"prompt_tokens": 7, "total_tokens": 7}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "must be a JSON object"),
        ({}, '"input" must be a string or a list of strings'),
        ({"input": []}, '"input" must be a string or a list of strings'),
        ({"input": ["a", 1]}, '"input" must be a string or a list of strings'),
        ({"input": [1, 2]}, "token ids"),
        ({"input": [[1, 2], [3]]}, "token ids"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": 2}, "dimensions must be 3"),
        ({"input": "a", "dimensions": True}, "dimensions"),
    ],
)
def test_what_embeddings_reject_is_named(body: Any, words: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        embed(body)
    assert words in raised.value.message


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(signature(), id="numbers"),
        pytest.param(signature([tensor("i", "BYTES", [-1], content_type="image/png")], [VECTOR]), id="pictures"),
        pytest.param(signature([TEXT], [VECTOR, tensor("other", "FP32", [-1, 2])]), id="two vectors"),
        pytest.param(signature([TEXT], [tensor("y", "INT64", [-1, 2])]), id="whole numbers"),
        pytest.param(signature([tensor("t", "BYTES", [1])], [tensor("y", "FP32", [1, 2])]), id="no batches"),
    ],
)
def test_a_model_that_gives_no_embeddings_states_what_one_has(model: ModelSignature) -> None:
    with pytest.raises(InvalidRequest, match="does not support embeddings"):
        embed({"input": "a"}, model)


def test_another_model_is_not_here() -> None:
    for asks in (embed, rerank):
        with pytest.raises(NotFound, match="unknown model 'gpt'"):
            asks({"model": "gpt", "input": "a", **query()})


def test_the_query_goes_with_each_document() -> None:
    decoded = rerank(query(documents=["a", {"text": "b", "id": 7}]))
    assert decoded.inputs["query"].tolist() == [b"fish", b"fish"]
    assert decoded.inputs["document"].tolist() == [[b"a"], [b"b"]]


def test_results_come_by_falling_score_and_equal_ones_in_order() -> None:
    scores = {"score": np.array([0.25, 0.9, 0.25], np.float32)}
    decoded_reply = document(Rerank("m", 100).encode(rerank(query()), scores, {}, RERANKS))
    assert decoded_reply["results"] == [
        {"index": 1, "relevance_score": 0.9},
        {"index": 0, "relevance_score": 0.25},
        {"index": 2, "relevance_score": 0.25},
    ]


def test_as_many_results_come_as_are_wanted_with_their_texts() -> None:
    decoded = rerank(query(top_n=2, return_documents=True))
    decoded_reply = document(Rerank("m", 100).encode(decoded, {"score": np.array([[1], [2], [3]], "<f2")}, {}, RERANKS))
    assert decoded_reply["results"] == [
        {"index": 2, "relevance_score": 3.0, "document": {"text": "c"}},
        {"index": 1, "relevance_score": 2.0, "document": {"text": "b"}},
    ]


def test_a_score_that_is_no_number_is_null_and_last() -> None:
    scores = {"score": np.array([np.nan, -5, np.inf], np.float32)}
    decoded_reply = document(Rerank("m", 100).encode(rerank(query()), scores, {}, RERANKS))
    assert [each["index"] for each in decoded_reply["results"]] == [2, 1, 0]
    assert decoded_reply["results"][2]["relevance_score"] is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"documents": ["a"]}, '"query" must be a string'),
        (query(documents=[]), '"documents" must be a list of texts'),
        (query(documents="a"), '"documents" must be a list of texts'),
        (query(documents=["a", {"title": "b"}]), "document 1 must be a string or"),
        (query(top_n=0), '"top_n" must be'),
        (query(top_n=True), '"top_n" must be'),
        (query(return_documents=1), '"return_documents" must be true or false'),
    ],
)
def test_what_rerank_rejects_is_named(body: Any, words: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        rerank(body)
    assert words in raised.value.message


def test_a_long_query_is_not_multiplied_beyond_what_a_body_may_have() -> None:
    rerank(query(query="q" * 30), most_bytes=90)
    with pytest.raises(BodyTooLarge, match="89 bytes"):
        rerank(query(query="q" * 30), most_bytes=89)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(EMBEDS, id="embeddings"),
        pytest.param(signature(PAIR, [tensor("score", "FP32", [-1, 2])]), id="two scores"),
        pytest.param(signature([*PAIR, tensor("x", "FP32", [-1])], [tensor("score", "FP32", [-1])]), id="one more"),
        pytest.param(signature([PAIR[0], tensor("document", "FP32", [-1])], [VECTOR]), id="numbers"),
    ],
)
def test_a_model_that_does_not_rerank_states_what_one_has(model: ModelSignature) -> None:
    with pytest.raises(InvalidRequest, match="does not support reranking"):
        rerank(query(), model)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequest("bad"), "invalid_request_error"),
        (Overloaded("full", reason=RejectionReason.QUEUE_ROWS, retry_after_s=1), "server_error"),
    ],
)
def test_errors_have_openais_shape(error: ProxyError, kind: str) -> None:
    reply = Embeddings("m").error(error)
    decoded_reply = {"message": error.message, "type": kind, "param": None, "code": None}
    assert (reply.status, document(reply)) == (error.status, {"error": decoded_reply})


def test_errors_have_coheres_shape_and_name_the_rows() -> None:
    reply = Rerank("m", 1).error(RowsFailed([RowError(1, 400, "empty")]))
    assert reply.status == 400
    assert document(reply)["message"] == "row 1: empty"
    assert document(reply)["errors"] == [{"row": 1, "status": 400, "message": "empty"}]
