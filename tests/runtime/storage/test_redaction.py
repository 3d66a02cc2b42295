from shoal_runtime.storage.redaction import MOST, safe

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "s3cret/key+",
    "HF_TOKEN": "hf_s3cret",
    "MLFLOW_TRACKING_PASSWORD": "pass-word",
    "AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=s3cret",
    "GOOGLE_APPLICATION_CREDENTIALS": "/keys/google.json",
    "MY_KEY": "short",
}


def test_users_queries_and_secrets_are_left_out() -> None:
    text = "GET https://me:pass-word@host/a/b?sig=s3cret%2Fkey in 1 ms: s3cret/key+ s3cret%2Fkey%2B (hf_s3cret)\nmore"

    assert safe(text, SECRETS) == "GET https://host/a/b in 1 ms: *** *** (***)"


def test_what_helps_is_left_in() -> None:
    assert safe("cannot open /keys/google.json: short", SECRETS) == "cannot open /keys/google.json: short"


def test_a_page_is_cut() -> None:
    assert len(safe("x" * 10_000, {})) == MOST + 3
