"""Tokens of an issuer: which are taken, in the core by table, and at a proxy that fetches the issuer's keys."""

import json
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from shoal_proxy import credentials
from shoal_proxy.access.control import AccessControl
from shoal_proxy.access.limits import ClientLimits
from shoal_proxy.access.tokens import TokenVerifier
from shoal_proxy.errors import Forbidden, IssuerUnavailable, ProxyError, Unauthenticated
from tests import plain
from tests.calls import V2_PATH, row, v2_body
from tests.fakes import running_proxy

ISSUER, AUDIENCE = "https://issuer.example.com", "cat"
RSA = {name: rsa.generate_private_key(65537, 2048) for name in ("one", "two")}
EC = ec.generate_private_key(ec.SECP256R1())


def public(name: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = jwt.algorithms.RSAAlgorithm.to_jwk(RSA[name].public_key(), as_dict=True)
    return {**found, "kid": name, "alg": "RS256", "use": "sig", **more}


def key_set(*keys: dict[str, Any]) -> dict[str, Any]:
    return {"keys": list(keys)}


def claims(**changes: Any) -> dict[str, Any]:
    """Return claims; times are in seconds from now."""
    made = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": 600, "scope": "read predict", **changes}
    now_s = int(time.clock_gettime(time.CLOCK_REALTIME))
    times = {name: now_s + made[name] for name in ("exp", "nbf") if made.get(name) is not None}
    return {name: value for name, value in (made | times).items() if value is not None}


def token(key: Any = RSA["one"], algorithm: str = "RS256", *, kid: str | None = "one", **changes: Any) -> bytes:
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(claims(**changes), key, algorithm, headers=headers).encode()


def forged(header: dict[str, Any], **changes: Any) -> bytes:
    parts = (urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in (header, claims(**changes)))
    return b".".join(parts) + b"."


def hmac_of_the_public_key() -> bytes:
    """Return an HS256 token that anyone with the public key can sign."""
    import hashlib
    import hmac

    pem = (
        RSA["one"]
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    unsigned = forged({"alg": "HS256", "kid": "one"})[:-1]
    return unsigned + b"." + urlsafe_b64encode(hmac.digest(pem, unsigned, hashlib.sha256)).rstrip(b"=")


@pytest.fixture
def tokens() -> TokenVerifier:
    made = TokenVerifier(ISSUER, AUDIENCE, scope="predict")
    elliptic = {**jwt.algorithms.ECAlgorithm.to_jwk(EC.public_key(), as_dict=True), "kid": "ec"}
    symmetric = {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0", "kid": "shared", "alg": "HS256"}
    useless = [symmetric, {"kty": "RSA", "kid": "broken"}, public("two", kid="enc", use="enc"), "nonsense"]
    assert made.set_keys({"keys": [public("one"), elliptic, *useless]}) == 2
    return made


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        (partial(token), "alice"),
        (partial(token, EC, "ES256", kid="ec"), "alice"),
        (partial(token, aud=["dog", AUDIENCE]), "alice"),
        (partial(token, scope=None, scp=["predict"]), "alice"),
        (partial(token, exp=-30), "alice"),  # within the clocks' skew
        (partial(token, nbf=30), "alice"),
        (partial(token, exp=-120), "expired"),
        (partial(token, nbf=600), "not valid yet"),
        (partial(token, exp=None), "MissingRequiredClaim"),
        (partial(token, aud="dog"), "another audience"),
        (partial(token, aud=None), "MissingRequiredClaim"),
        (partial(token, iss="https://evil.example.com"), "another issuer"),
        (partial(token, iss=None), "MissingRequiredClaim"),
        (partial(token, sub=None), "MissingRequiredClaim"),
        (partial(token, RSA["two"]), "signature is wrong"),
        (partial(token, kid="elsewhere"), "does not publish"),
        (partial(token, kid=None), "does not publish"),  # of two keys, which?
        (partial(token, kid="ec"), "does not match its key"),
        (partial(token, algorithm="RS512"), "does not match its key"),
        (partial(token, algorithm="PS256"), "does not match its key"),
        (forged({"alg": "none", "kid": "one"}), "not supported"),
        (forged({"alg": "None", "kid": "one"}), "not supported"),
        (forged({"alg": "RS256", "kid": "one"}), "signature is wrong"),
        (forged({"kid": "one"}), "not supported"),
        (forged({"alg": ["RS256"], "kid": "one"}), "not supported"),
        (hmac_of_the_public_key(), "not supported"),
        (jwt.encode(claims(), "secret" * 8, "HS256", headers={"kid": "shared"}).encode(), "not supported"),
        (b"a.b.c", "not valid"),
        (b"..", "not valid"),
        (b"no-token-at-all", "not a token"),
        (b"\xff.\xff.\xff", "not valid"),
        (b"x" * 20_000, "not a token"),
    ],
)
def test_a_token_is_accepted_or_rejected(
    tokens: TokenVerifier, given: bytes | Callable[[], bytes], outcome: str
) -> None:
    given = given if isinstance(given, bytes) else given()
    if outcome == "alice":
        assert tokens.check(given) == "alice"
        return
    with pytest.raises(Unauthenticated) as refused:
        tokens.check(given)
    assert outcome in refused.value.message
    assert given.decode("latin-1") not in refused.value.message


@pytest.mark.parametrize(
    "changes", [{"scope": "read"}, {"scope": None}, {"scope": ["predict"], "sub": "a\nb"}, {"sub": ""}, {"scope": 5}]
)
def test_a_valid_token_without_permission_is_forbidden(tokens: TokenVerifier, changes: dict[str, Any]) -> None:
    with pytest.raises((Forbidden, Unauthenticated)) as refused:
        tokens.check(token(**changes))
    assert refused.value.status == 403


@pytest.mark.parametrize("document", [[], {}, {"keys": {}}, {"keys": []}, {"keys": [{"kty": "oct", "k": "eA"}]}])
def test_a_set_without_a_key_of_use_is_rejected_and_changes_nothing(tokens: TokenVerifier, document: Any) -> None:
    with pytest.raises(ValueError, match=r"JSON object|none of its keys"):
        tokens.set_keys(document)
    assert tokens.check(token()) == "alice"


def test_the_only_key_needs_no_name() -> None:
    tokens = TokenVerifier(ISSUER, AUDIENCE)
    tokens.set_keys(key_set({name: value for name, value in public("one").items() if name != "kid"}))
    assert tokens.check(token(kid=None)) == "alice"


def test_an_unknown_key_is_requested_and_the_client_may_come_again(tokens: TokenVerifier) -> None:
    asked = []

    def look_again() -> bool:
        asked.append(1)
        return True

    tokens.look_again = look_again
    with pytest.raises(IssuerUnavailable):
        tokens.check(token(RSA["two"], kid="two"))
    tokens.set_keys(key_set(public("two")))
    assert (asked, tokens.check(token(RSA["two"], kid="two"))) == ([1], "alice")
    with pytest.raises(IssuerUnavailable):
        TokenVerifier(ISSUER, AUDIENCE).check(token())


def test_a_key_of_its_own_is_no_token_in_its_header() -> None:
    access_control = AccessControl(ClientLimits({}, {}), check_token=lambda text: "alice")
    assert access_control.identify({b"authorization": b"Bearer a.b.c"}).name == "alice"
    with pytest.raises(ProxyError):
        access_control.identify({b"x-api-key": b"a.b.c"})


class Published:
    """An issuer's keys, over HTTP."""

    def __init__(self) -> None:
        self.document: Any = key_set(public("one"))
        self.asked = 0


@contextmanager
def issuer() -> Iterator[tuple[str, Published]]:
    published = Published()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            published.asked += 1
            body = json.dumps(published.document).encode()
            self.send_response(200 if published.document else 500)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/keys", published
        server.shutdown()
        thread.join()


def test_the_issuers_keys_are_fetched_and_follow_a_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "FETCH_AGAIN_S", 0.05)
    monkeypatch.setattr(credentials, "CHECK_S", 0.05)
    with issuer() as (url, published):
        published.document = None  # at first it does not answer
        settings: dict[str, Any] = {"access_jwt__issuer": ISSUER, "access_jwt__audience": AUDIENCE}
        with (
            running_proxy(ready=False, access_jwt__jwks_url=url, **settings) as running,
            plain.Client(base_url=running.url, timeout=20) as client,
        ):

            def ask(shown: bytes) -> int:
                headers = {"authorization": f"Bearer {shown.decode()}"}
                return client.post(V2_PATH, json=v2_body([row(1)]), headers=headers).status_code

            assert (ask(token()), client.get("/v2/health/ready").json()["ready"]) == (503, False)
            published.document = key_set(public("one"))
            running.until(lambda: not running.proxy.pages.reason())
            assert [ask(token()), ask(token(exp=-600)), ask(token(RSA["two"], kid="two"))][:2] == [200, 401]

            published.document = key_set(public("one"), public("two"))
            running.until(lambda: _known(running, token(RSA["two"], kid="two")))
            assert (ask(token(RSA["two"], kid="two")), ask(token())) == (200, 200)
            published.document = None  # an issuer that is away: what is known stays
            asked = published.asked
            ask(token(kid="three"))
            running.until(lambda: published.asked > asked)
            assert ask(token()) == 200
            assert (
                {name for name, _ in running.proxy.access_control.requests} == {"(jwt)"}
                if running.proxy.access_control
                else False
            )


def _known(running: Any, shown: bytes) -> bool:
    try:
        running.proxy.access_control.identify({b"authorization": b"Bearer " + shown})
    except ProxyError:
        return False
    return True
