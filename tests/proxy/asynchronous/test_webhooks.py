"""Signatures of webhooks, their headers, and the times of further tries."""

from base64 import b64encode
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from shoal_proxy.asynchronous.webhooks import (
    MAX_KEYS,
    RetrySchedule,
    described_by,
    parse_keys,
    requested_pause_s,
    sign,
)
from shoal_proxy.codecs.base import HttpResponse

SCHEDULE = RetrySchedule()
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_the_signature_of_the_specifications_example() -> None:
    # The example of the reference implementation.
    keys = parse_keys(SECRET.encode())
    signature = sign(keys, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, (b'{"test": ', memoryview(b"2432232314}")))
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@given(st.text(), st.integers(0, 2**31), st.binary(min_size=24, max_size=64))
def test_the_reference_implementation_makes_the_same_signature(body: str, timestamp_s: int, key: bytes) -> None:
    text = body.encode(errors="ignore")
    reference = Webhook(f"whsec_{b64encode(key).decode()}")
    expected = reference.sign("job", datetime.fromtimestamp(timestamp_s, UTC), text.decode())
    assert sign((key,), "job", timestamp_s, (text,)) == expected


def test_a_webhook_is_signed_with_the_old_and_the_new_key_while_they_are_exchanged() -> None:
    new = f"whsec_{b64encode(bytes(range(32))).decode()}"
    now = datetime.now(UTC)  # noqa: TID251 (receivers reject old webhooks)
    signature = sign(parse_keys(f"{new}\n{SECRET}\n".encode()), "job", int(now.timestamp()), (b"{}",))
    headers = {
        "webhook-id": "job",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": signature,
    }
    for secret in (new, SECRET):
        assert Webhook(secret).verify(b"{}", headers) == {}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        SECRET.removeprefix("whsec_").encode(),
        b"whsec_",
        b"whsec_!!!!",
        b"whsec_" + b64encode(bytes(23)),
        b"whsec_" + b64encode(bytes(65)),
        SECRET.encode() + b"\nsecret",
        b"whpk_" + b64encode(bytes(32)),
        b"\xff\xfe",
        (SECRET.encode() + b"\n") * (MAX_KEYS + 1),
    ],
)
def test_malformed_keys_are_rejected_without_repeating_them(text: bytes) -> None:
    with pytest.raises(ValueError, match="key") as caught:
        parse_keys(text)
    assert SECRET.removeprefix("whsec_") not in str(caught.value)


def test_a_webhook_repeats_only_headers_that_describe_the_result() -> None:
    lines = (
        b"Inference-Header-Content-Length: 99\r\nx-shoal-executed:no\r\nconnection: close\r\n"
        b"retry-after: 1\r\nset-cookie: a=b\r\n"
    )
    described = described_by(HttpResponse(200, (), lines=lines).headers())
    assert described == [(b"inference-header-content-length", b"99"), (b"x-shoal-executed", b"no")]
    assert described_by(HttpResponse(200, ()).headers()) == []


def test_pauses_grow_until_the_last_try() -> None:
    now_s, pauses = 100.0, []
    for tries in range(1, SCHEDULE.max_tries):
        next_s = SCHEDULE.next_try_s(tries, 100.0, now_s, 0.0, lambda: 1.0)
        assert next_s is not None
        pauses.append(next_s - now_s)
        now_s = next_s
    assert pauses[0] == SCHEDULE.first_pause_s
    assert pauses == sorted(pauses)
    assert pauses[-1] == SCHEDULE.max_pause_s
    assert SCHEDULE.next_try_s(SCHEDULE.max_tries, 100.0, now_s, 0.0, lambda: 1.0) is None


@given(
    st.integers(1, SCHEDULE.max_tries),
    st.floats(0, 2 * SCHEDULE.max_age_s),
    st.floats(0, 2 * SCHEDULE.max_age_s),
    st.floats(0, 1),
)
def test_a_try_honors_the_requested_pause_and_the_age(
    tries: int, age_s: float, requested_s: float, share: float
) -> None:
    next_s = SCHEDULE.next_try_s(tries, 50.0, 50.0 + age_s, requested_s, lambda: share)
    if next_s is None:
        pause_s = max(requested_s, SCHEDULE.max_pause_s)
        assert tries == SCHEDULE.max_tries or age_s + pause_s > SCHEDULE.max_age_s
    else:
        assert next_s >= 50.0 + age_s + max(requested_s, SCHEDULE.first_pause_s / 2)
        assert next_s <= 50.0 + SCHEDULE.max_age_s


def test_retry_after_is_seconds_or_a_date() -> None:
    date = format_datetime(datetime.fromtimestamp(1_000_060, UTC), usegmt=True).encode()
    values = {b"7": 7.0, date: 60.0, b"": 0.0, b"soon": 0.0, b"-5": 0.0, b"1e3": 0.0, "٣".encode(): 0.0}
    for value, expected in values.items():
        assert requested_pause_s({b"retry-after": value}, 1_000_000.0) == expected
    assert requested_pause_s({}, 0.0) == 0.0
    assert requested_pause_s({b"retry-after": date}, 2_000_000.0) == 0.0
    assert requested_pause_s({b"retry-after": b"9" * 4000}, 0.0) > SCHEDULE.max_age_s


@given(st.binary(max_size=40))
def test_any_retry_after_is_a_pause(value: bytes) -> None:
    assert requested_pause_s({b"retry-after": value}, 1e9) >= 0.0
