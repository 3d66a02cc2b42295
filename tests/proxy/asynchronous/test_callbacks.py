"""URLs and addresses that webhooks may be sent to: what a hostile client can write, and what DNS can return."""

import re
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal_proxy.asynchronous.callbacks import (
    MAX_URL_LENGTH,
    Callback,
    ListedHosts,
    parse_listed_host,
    refusal,
)
from shoal_proxy.errors import InvalidRequest
from shoal_schema.resource.asynchronous import WEBHOOK_HOST

LISTED = ListedHosts((
    "hooks.example.com", "*.example.org", "alt.example.com:8443", "http://receiver.shop.svc", "10.1.2.3",
    "[fd00::1]:444",
))  # fmt: skip

ACCEPTED = {
    "https://hooks.example.com": Callback("https", "hooks.example.com", 443, "/"),
    "https://hooks.example.com/a/b%20c?d=e&f=%2F": Callback("https", "hooks.example.com", 443, "/a/b%20c?d=e&f=%2F"),
    "https://hooks.example.com?d": Callback("https", "hooks.example.com", 443, "/?d"),
    "https://hooks.example.com//twice/../up": Callback("https", "hooks.example.com", 443, "//twice/../up"),
    "HTTPS://Hooks.Example.COM:443/": Callback("https", "hooks.example.com", 443, "/"),
    "https://a.example.org/": Callback("https", "a.example.org", 443, "/"),
    "https://a.b.example.org/": Callback("https", "a.b.example.org", 443, "/"),
    "https://xn--bcher-kva.example.org/": Callback("https", "xn--bcher-kva.example.org", 443, "/"),
    "https://alt.example.com:8443/": Callback("https", "alt.example.com", 8443, "/"),
    "http://receiver.shop.svc/done": Callback("http", "receiver.shop.svc", 80, "/done"),
    "https://10.1.2.3/": Callback("https", "10.1.2.3", 443, "/"),
    "https://[FD00:0::1]:444/": Callback("https", "fd00::1", 444, "/"),
}
REJECTED = (
    "", "hooks.example.com", "//hooks.example.com/", "https:/hooks.example.com/", "https:hooks.example.com",
    "ftp://hooks.example.com/", "file:///etc/passwd", "gopher://hooks.example.com/", "https://",
    # Another host.
    "https://example.com/", "https://evil.com/", "https://hooks.example.com.evil.com/", "https://evilexample.org/",
    "https://example.org/", "https://.example.org/", "https://a..example.org/", "https://-.example.org/",
    "https://hooks.example.com%2eevil.com/", "https://evil.com%23.example.org/",
    # Credentials, and separators that parsers disagree about.
    "https://user@hooks.example.com/", "https://user:word@hooks.example.com/", "https://hooks.example.com@evil.com/",
    "https://hooks.example.com:443@evil.com/", "https://evil.com#.example.org/", "https://evil.com\\.example.org/",
    "https://evil.com?.example.org/", "https://hooks.example.com\\@evil.com/", "https://hooks.example.com\t/",
    "https://hooks.example.com/\r\nx: y", "https://hooks.example.com/ HTTP/1.1", " https://hooks.example.com/",
    "https://hooks.example.com/\n", "https://hooks.example.com/#part", "https://hooks.example.com/%zz",
    "https://hooks.example.com/\x00", "https://hooks.example.com/ü",
    # Names that a resolver reads otherwise.
    "https://hooks.example.com./", "https://a.example.org./", "https://hooks。example。com/", "https://\uff48ooks.example.com/",
    "https://bücher.example.org/", "https://hooks_1.example.org/",
    # Ports.
    "https://hooks.example.com:8443/", "https://alt.example.com/", "https://hooks.example.com:/",
    "https://hooks.example.com:0/", "https://hooks.example.com:99999/", "https://hooks.example.com:+443/",
    "https://hooks.example.com:443:443/", "http://hooks.example.com/", "http://hooks.example.com:443/",
    "https://receiver.shop.svc/", "http://receiver.shop.svc:443/", "http://a.example.org/",
    # Addresses in other notations.
    "https://012.1.2.3/", "https://10.1.515/", "https://0x0a010203/", "https://167838211/", "https://10.1.2.3./",
    "https://10.01.2.3/", "https://[::ffff:10.1.2.3]/", "https://[fd00::1]/", "https://[fd00::1%25eth0]:444/",
    "https://[fd00::1/", "https://fd00::1:444/", "https://[]:444/", "https://127.0.0.1/", "https://[::1]/",
    "https://10.1.2.3.example.com/",
)  # fmt: skip


@pytest.mark.parametrize("url", ACCEPTED)
def test_a_url_of_a_listed_host_is_accepted_with_its_path_and_query_unchanged(url: str) -> None:
    assert LISTED.parse(url) == ACCEPTED[url]


@pytest.mark.parametrize("url", REJECTED)
def test_any_other_url_is_rejected(url: str) -> None:
    with pytest.raises(InvalidRequest):
        LISTED.parse(url)


def test_a_long_url_is_rejected() -> None:
    url = "https://hooks.example.com/"
    assert LISTED.parse(url + "a" * (MAX_URL_LENGTH - len(url)))
    with pytest.raises(InvalidRequest):
        LISTED.parse(url + "a" * (MAX_URL_LENGTH + 1 - len(url)))


PIECES = st.sampled_from([
    "https", "http", "HTTPS", "://", ":", "/", "//", "\\", "@", "#", "?", "%", "%2f", "%40", ".", "..", "[", "]", " ",
    "\t", "\n", "\0", "0x7f", "0177", "1", "127.0.0.1", "169.254.169.254", "[::1]", "::1", "user", "443", "80", "8443",
    "hooks.example.com", "a.example.org", "example.org", "evil.com", "EXAMPLE", "receiver.shop.svc", "xn--", "\u00fc",
    "\u3002", "\uff45", "-", "_", "*", "\u200d", "\u00ad",
])  # fmt: skip
HOSTILE = st.one_of(
    st.text(max_size=40),
    st.lists(PIECES, max_size=9).map("".join),
    st.lists(PIECES, max_size=9).map(lambda pieces: "https://" + "".join(pieces)),
    st.builds(
        "https://{}{}{}".format, PIECES, st.sampled_from(["a.example.org", "hooks.example.com"]), st.text(max_size=9)
    ),
)


@given(HOSTILE)
@example("https://xn--a.example.org")
@example("https://xn--bcher-kva.example.org")
def test_every_parser_reads_the_listed_host_from_an_accepted_url(url: str) -> None:
    with suppress(InvalidRequest):
        callback = LISTED.parse(url)
        split, parsed = urlsplit(url), httpx.URL(url)
        assert (split.scheme, split.hostname) == (callback.scheme, callback.host)
        # The host that is sent; `host` decodes a first label `xn--`.
        assert (parsed.scheme, parsed.raw_host.decode()) == (callback.scheme, callback.host)
        for parts in (split, parsed):
            assert parts.port in (callback.port, None)
            assert not any((parts.username, parts.password, parts.fragment))
        assert LISTED.parse(f"{callback.scheme}://{callback.authority}{callback.target}") == callback


MALFORMED = (
    "", "*", "*.", "*.com", "http://*.example.com", "https://a.example.com", "ftp://a.example.com", "a.example.com/",
    "a.example.com:0", "a.example.com:65536", "a.example.com:", "A.example.com", "a.example.com.", "*.10.1.2.3",
    "10.1.2", "010.1.2.3", "a b", "a,b", "a.*.example.com", "**.example.com", "*a.example.com", "u@a.example.com",
    "[fd00::1",
    "fd00::1", "[::1%eth0]", "[10.1.2.3]", "a.example.com\n", "bücher.example.com",
)  # fmt: skip


@pytest.mark.parametrize("entry", MALFORMED)
def test_a_malformed_entry_of_the_list_is_rejected(entry: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (addresses of the standard library raise it too)
        parse_listed_host(entry)


LISTABLE = (
    "receiver", "hooks.example.com", "hooks.example.com:8443", "*.example.org", "*.a.example.org:444", "10.1.2.3",
    "http://receiver.shop.svc", "http://receiver:9000", "http://127.0.0.1:9000", "[fd00::1]", "http://[::1]:9000",
    "xn--bcher-kva.example",
)  # fmt: skip


def test_the_field_accepts_the_same_entries() -> None:
    for entry in LISTABLE:
        assert re.search(WEBHOOK_HOST, entry)
        assert parse_listed_host(entry)
    assert [entry for entry in MALFORMED if re.search(WEBHOOK_HOST, entry)] == []


@given(st.from_regex(WEBHOOK_HOST))
def test_what_the_field_accepts_is_an_entry_or_clearly_malformed(entry: str) -> None:
    with suppress(ValueError):
        listed = parse_listed_host(entry)
        assert listed.host in entry or ":" in listed.host
        assert listed.wildcard == entry.startswith("*.")
        assert listed.scheme == ("http" if entry.startswith("http://") else "https")


def test_the_header_host_has_the_port_unless_it_is_the_schemes() -> None:
    urls = ("https://hooks.example.com:443/", "https://alt.example.com:8443/", "https://[fd00::1]:444/")
    assert [LISTED.parse(url).authority for url in urls] == [
        "hooks.example.com",
        "alt.example.com:8443",
        "[fd00::1]:444",
    ]


def test_only_an_entry_without_a_wildcard_lists_a_host_exactly() -> None:
    assert LISTED.is_exact("hooks.example.com", 443)
    assert LISTED.is_exact("receiver.shop.svc", 80)
    assert not LISTED.is_exact("hooks.example.com", 8443)
    assert not LISTED.is_exact("example.org", 443)
    assert not LISTED.is_exact("a.example.org", 443)


NEVER = (
    "0.0.0.0", "::", "169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%eth0", "224.0.0.1", "ff02::1", "240.0.0.1",
    "255.255.255.255", "::ffff:169.254.169.254", "::ffff:0.0.0.0", "2002:a9fe:a9fe::1", "64:ff9b::a9fe:a9fe",
    "::169.254.169.254", "168.63.129.16", "::ffff:168.63.129.16", "fd00:ec2::254", "100.100.100.200",
)  # fmt: skip
PRIVATE = (
    "127.0.0.1", "127.9.9.9", "::1", "10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "fd00::1", "198.18.0.1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::1", "192.0.2.1", "2001:db8::1",
)  # fmt: skip
PUBLIC = ("1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101")


@pytest.mark.parametrize("address", NEVER)
def test_link_local_multicast_unspecified_and_metadata_addresses_are_always_refused(address: str) -> None:
    assert refusal(address, exact=True)
    assert refusal(address, exact=False)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_refused_unless_the_host_is_listed_exactly(address: str) -> None:
    assert refusal(address, exact=False)
    assert not refusal(address, exact=True)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    assert not refusal(address, exact=False)


@given(st.ip_addresses())
def test_an_address_behind_a_wildcard_is_public_in_every_notation(address: object) -> None:
    if not refusal(str(address), exact=False):
        parsed = ip_address(str(address))
        assert parsed.is_global
        assert not parsed.is_multicast
        assert not parsed.is_link_local
        assert not refusal(str(address), exact=True)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_in_ipv6_notation_is_treated_as_itself(address: object) -> None:
    for exact in (True, False):
        assert bool(refusal(f"::ffff:{address}", exact=exact)) == bool(refusal(str(address), exact=exact))
