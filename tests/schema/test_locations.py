"""What a model's URI names, whether it moves, and what is asked about it; answers as the real servers give them."""

import base64
import re
import time
from collections.abc import Mapping

import pytest

from shoal_schema.decoding import SpecError, parse_batch_spec
from shoal_schema.fields.declaring import Json
from shoal_schema.fields.redaction import redacted, redacted_value
from shoal_schema.resource.locations import (
    FIXED,
    Location,
    LocationError,
    moves,
    parse,
    rejection_reason,
    scheme_of,
    shown,
    version_request,
)

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MLFLOW = {"MLFLOW_TRACKING_URI": "http://mlflow:5000/"}


@pytest.mark.parametrize(
    ("uri", "location"),
    [
        ("file:///models/cat", Location("file", "", "/models/cat")),
        ("https://host:1/cat.pt2?v=1", Location("https", "host:1", "/cat.pt2")),
        ("s3://bucket/models/a b#c/", Location("s3", "bucket", "models/a b#c/")),
        ("gs://bucket", Location("gs", "bucket", "")),
        ("abfss://box@acc.dfs.core.windows.net/m", Location("abfss", "box@acc.dfs.core.windows.net", "m")),
        ("hf://team/encoder", Location("hf", "team/encoder", "")),
        ("hf://team/encoder@refs%2Fpr%2F1/sub/a.bin", Location("hf", "team/encoder", "sub/a.bin", "refs/pr/1")),
        ("models:/my model/3", Location("models", "my model", "", "3")),
        ("models:/iris@champion", Location("models", "iris", "", "@champion")),
        ("models:/iris/Latest", Location("models", "iris", "", "latest")),
        ("models:/m-12ab", Location("models", "m-12ab", "")),
        ("runs:/12ab/model/data", Location("runs", "12ab", "model/data")),
        ("oci://registry:5000/team/cat:v1", Location("oci", "registry:5000", "team/cat", ":v1")),
        ("oci://registry/cat@sha256:12", Location("oci", "registry", "cat", "@sha256:12")),
        ("pvc://claim/models/cat", Location("pvc", "claim", "models/cat")),
        ("pvc://team.claim-1/a%20b/..c", Location("pvc", "team.claim-1", "a b/..c")),
    ],
)
def test_a_uri_is_parsed(uri: str, location: Location) -> None:
    assert parse(uri) == location


@pytest.mark.parametrize(
    ("uri", "fragment"),
    [
        ("ftp://host/cat", "file://, http://, https://, s3://"),
        ("s3:/bucket/cat", "must begin with one of"),
        ("/models/cat", "must begin with one of"),
        ("s3:///cat", "s3://BUCKET/PATH"),
        ("hf://team", "hf://OWNER/NAME[@REVISION][/PATH]"),
        ("hf://team/@main", "hf://OWNER/NAME"),
        ("hf://../encoder", "hf://OWNER/NAME"),
        ("hf://team/..", "hf://OWNER/NAME"),
        ("hf://team/x%2F..%2F..", "hf://OWNER/NAME"),
        ("hf://team/x%3Fa=b", "hf://OWNER/NAME"),
        ("hf://team/x#y", "hf://OWNER/NAME"),
        ("hf://team/encoder@..", "hf://OWNER/NAME"),
        ("hf://team/encoder@..%2f..%2fwhoami", "hf://OWNER/NAME"),
        ("models:/", "models:/NAME/VERSION, models:/NAME@ALIAS or models:/ID"),
        ("models:/a/b/c", "models:/NAME/VERSION"),
        ("models:/@champion", "models:/NAME/VERSION"),
        ("models:/iris@", "models:/NAME/VERSION"),
        ("runs:/", "runs:/RUN/PATH"),
        ("models:/..", "models:/NAME/VERSION"),
        ("models:/../3", "models:/NAME/VERSION"),
        ("oci://registry", "oci://REGISTRY/NAME:TAG"),
        *(
            (f"pvc://{place}", "pvc://CLAIM/PATH, a claim's name and a PATH without ..")
            for place in (
                "claim/../../etc",
                "claim/%2e%2E/x",
                "claim/a%2f..%2fb",
                "claim/a/..",
                "../x",
                "Claim_BAD/x",
                "%2e%2e/x",
                "claim/a%00",
            )
        ),
    ],
)
def test_what_names_no_model_is_rejected_with_what_would(uri: str, fragment: str) -> None:
    with pytest.raises(LocationError) as error:
        parse(uri)

    assert fragment in str(error.value)


USERS = [
    "me:s3cret",
    "AKIAIOSFODNN7EXAMPLE:wJalr/s3cret/bPxRfi+CY=",
    "me:s3cret%2Fkey",
    "me%3as3cret",
    ":s3cret",
    "me:s3cret:more",
    "me:a@s3cret",
    "s3cret",
]
HOSTILE = [
    *[f"{scheme}://{user}@bucket/cat" for scheme in ("s3", "gs", "az", "hf", "pvc") for user in USERS],
    *[f"file://{user}@/cat" for user in USERS],
    *[f"abfss://{user}@box@account.dfs.core.windows.net/cat" for user in USERS],
    *[f"oci://{user}@registry.example.com:5000/cat:1" for user in USERS],
    *[f"models:/{user}@cat/1" for user in USERS if ":" in user],
    "abfss://box:s3cret@account.dfs.core.windows.net/cat",
    "runs:/me:s3cret@run/cat",
    "oci://me:s3cret@registry/cat@sha256:" + "0" * 64,
]
"""URIs that hold a secret, in every scheme that has no use for one."""
QUERIES = ["s3://bucket/cat?key=s3cret", "hf://team/cat?token=s3cret", "abfss://a@b/c?sig=s3cret"]
HARMLESS = [
    "file:///models/a:b@c",
    "s3://bucket/a@b",
    "gs://bucket/day=1/a:b@c",
    "az://box/a@b",
    "abfss://box@account.dfs.core.windows.net/a@b",
    "hf://team/encoder@v1/a:b",
    "models:/iris@champion",
    "models:/iris/3",
    "runs:/7/a@b",
    "oci://registry/cat@sha256:" + "0" * 64,
    "oci://registry:5000/team/cat:1@sha256:" + "0" * 64,
    "pvc://claim/a@b",
]


@pytest.mark.parametrize("uri", HOSTILE + QUERIES)
def test_credentials_in_a_uri_are_rejected_and_not_repeated(uri: str) -> None:
    with pytest.raises(LocationError) as error:
        parse(uri)

    assert "must not hold credentials" in str(error.value)
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("uri", HOSTILE)
def test_credentials_in_any_field_are_rejected_and_not_repeated(uri: str) -> None:
    batch: Json = {"model": {"uri": "file:///m"}, "input": {"uri": "s3://b/i"}, "output": {"uri": "s3://b/o"}}
    for spec in (
        {**batch, "model": {"uri": uri}},
        {**batch, "input": {"uri": uri}},
        {**batch, "output": {"uri": uri}},
        {**batch, "output": {"uri": "s3://b/o", "errors": uri}},
    ):
        with pytest.raises(SpecError) as error:
            parse_batch_spec({"metadata": {"name": "a", "namespace": "b"}, "spec": spec})
        assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("uri", HOSTILE + QUERIES + [f"https://{user}@host/cat" for user in USERS])
def test_messages_hold_no_secret_of_a_uri(uri: str) -> None:
    for text in (uri, uri.replace("://", "://", 1).upper().replace("S3CRET", "s3cret")):
        assert "s3cret" not in shown(text)
        assert "s3cret" not in redacted(f'cannot read "{text}": no such bucket')


@pytest.mark.parametrize("uri", HARMLESS)
def test_an_at_sign_is_no_secret_by_itself(uri: str) -> None:
    assert parse(uri).scheme == scheme_of(uri)
    assert shown(uri) == uri


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("https://me:word@host:1/cat?token=word#word", "https://host:1/cat"),
        ("/models/what?", "/models/what?"),
        ("abfss://box@acc.dfs.core.windows.net/m", "abfss://box@acc.dfs.core.windows.net/m"),
        ("abfss://box:word@acc.dfs.core.windows.net/m", "abfss://acc.dfs.core.windows.net/m"),
        ("hf://team/encoder@v1", "hf://team/encoder@v1"),
        ("models:/iris@champion", "models:/iris@champion"),
    ],
)
def test_what_may_be_secret_is_not_shown(uri: str, expected: str) -> None:
    assert shown(uri) == expected


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("hf://a/b", True),
        ("hf://a/b@v1", True),
        (f"hf://a/b@{COMMIT}", False),
        ("models:/iris@champion", True),
        ("models:/iris/latest", True),
        ("models:/iris/3", False),
        ("models:/m-12ab", False),
        ("models://iris/3/", False),
        ("models:/a@b/3", False),
        (f"hf://a/b@{COMMIT}/sub", False),
        (f"hf://a/b/{COMMIT}", True),
        ("runs:/12ab/model", False),
        ("s3://bucket/iris", False),
        ("https://host/iris@v1", False),
    ],
)
def test_a_name_moves_where_it_may_be_redirected(uri: str, *, expected: bool) -> None:
    assert moves(uri) is expected
    if uri.startswith(("hf:", "models:")):
        assert (re.search(FIXED, uri) is None) is expected


@pytest.mark.parametrize(
    ("uri", "asked", "answer", "resolved"),
    [
        ("hf://a/b", "https://huggingface.co/api/models/a/b/revision/main", {"sha": COMMIT}, f"hf://a/b@{COMMIT}"),
        (
            "hf://a/b@refs%2Fpr%2F1/x y",
            "https://huggingface.co/api/models/a/b/revision/refs%2Fpr%2F1",
            {"sha": COMMIT},
            f"hf://a/b@{COMMIT}/x%20y",
        ),
        (
            "models:/my iris@champion",
            "http://mlflow:5000/api/2.0/mlflow/registered-models/alias?name=my+iris&alias=champion",
            {"model_version": {"name": "my iris", "version": "3"}},
            "models:/my iris/3",
        ),
        (
            "models:/iris/latest",
            "http://mlflow:5000/api/2.0/mlflow/registered-models/get-latest-versions?name=iris",
            {"model_versions": [{"version": "9"}, {"version": "10"}]},
            "models:/iris/10",
        ),
        (
            "models:/iris/3",
            "http://mlflow:5000/api/2.0/mlflow/model-versions/get-download-uri?name=iris&version=3",
            {"artifact_uri": "models:/m-12"},
            "models:/m-12",
        ),
        (
            "models:/m-12",
            "http://mlflow:5000/api/2.0/mlflow/logged-models/m-12",
            {"model": {"info": {"artifact_uri": "mlflow-artifacts:/0/models/m-12/artifacts"}}},
            "mlflow-artifacts:/0/models/m-12/artifacts",
        ),
        (
            "runs:/ab/model",
            "http://mlflow:5000/api/2.0/mlflow/runs/get?run_id=ab",
            {"run": {"info": {"artifact_uri": "s3://bucket/0/ab/artifacts"}}},
            "s3://bucket/0/ab/artifacts/model",
        ),
    ],
)
def test_a_response_resolves_to_the_next_uri(uri: str, asked: str, answer: object, resolved: str) -> None:
    it = version_request(uri, MLFLOW)

    assert it is not None
    assert (it.url, it.read_uri(answer)) == (asked, resolved)


@pytest.mark.parametrize(
    "uri", [f"hf://a/b@{COMMIT}", "s3://bucket/cat", "mlflow-artifacts:/0/x", "file:///models/cat"]
)
def test_fixed_uris_need_no_request(uri: str) -> None:
    assert version_request(uri, {}) is None


@pytest.mark.parametrize(
    ("uri", "environment", "header"),
    [
        ("hf://a/b", {"HF_TOKEN": "s3cret"}, "Bearer s3cret"),
        ("models:/a/1", {**MLFLOW, "MLFLOW_TRACKING_TOKEN": "s3cret"}, "Bearer s3cret"),
        (
            "models:/a/1",
            {**MLFLOW, "MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "s3cret"},
            "Basic " + base64.b64encode(b"me:s3cret").decode(),
        ),
        (
            "models:/a/1",
            {"MLFLOW_TRACKING_URI": "https://me:s3%20cret@mlflow"},
            "Basic " + base64.b64encode(b"me:s3 cret").decode(),
        ),
    ],
)
def test_credentials_travel_in_a_header_that_is_not_printed(
    uri: str, environment: Mapping[str, str], header: str
) -> None:
    it = version_request(uri, environment)

    assert it is not None
    assert it.headers["authorization"] == header
    assert "cret" not in it.url
    assert header not in repr(it)


@pytest.mark.parametrize("given", ["", "sqlite:///mlflow.db", "databricks"])
def test_an_mlflow_server_is_required(given: str) -> None:
    with pytest.raises(LocationError, match="require MLFLOW_TRACKING_URI"):
        version_request("models:/iris/3", {"MLFLOW_TRACKING_URI": given})


@pytest.mark.parametrize("answer", [{}, [], None, {"sha": None}, {"sha": 3}, "sha"])
def test_an_incomplete_response_is_an_error(answer: object) -> None:
    it = version_request("hf://a/b", {})

    assert it is not None
    with pytest.raises(LocationError, match="the hub has no sha"):
        it.read_uri(answer)


@pytest.mark.parametrize("answer", [{}, {"model_versions": []}])
def test_a_model_without_a_version_is_an_error(answer: object) -> None:
    it = version_request("models:/iris/latest", MLFLOW)

    assert it is not None
    with pytest.raises(LocationError, match="models:/iris/latest has no version"):
        it.read_uri(answer)


@pytest.mark.parametrize(
    ("uri", "status", "fragment"),
    [
        ("models:/iris@champion", 400, "models:/iris@champion"),
        ("models:/iris/3", 404, "models:/iris/3"),
        ("models:/iris/3", 401, "MLFLOW_TRACKING_TOKEN"),
        ("hf://a/b", 403, "HF_TOKEN"),
        ("hf://a/b", 418, "the hub returned 418"),
    ],
)
def test_the_error_of_a_failed_request_names_the_remedy(uri: str, status: int, fragment: str) -> None:
    assert fragment in rejection_reason(uri, status)


@pytest.mark.parametrize(
    "text",
    [*(uri for uri in HARMLESS if "box@" not in uri), "repo/image:1@sha256:" + "0" * 64, "a@b", "Recreate?", "12:30"],
)
def test_values_without_a_secret_are_shown_whole(text: str) -> None:
    assert redacted_value(text) == text


@pytest.mark.parametrize("text", ['{"a":', "a:@", "a:@,", "?a=", "a://", "@:/"])
def test_redaction_takes_linear_time(text: str) -> None:
    began_s = time.process_time()
    redacted_value(text * 200_000)

    assert time.process_time() - began_s < 5
