"""httpx for HTTP without TLS: by default each of its clients first reads every authority of the web, 50 ms long."""

import ssl
from functools import partial

import httpx

_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody

Client = partial(httpx.Client, verify=_NOBODY)
AsyncClient = partial(httpx.AsyncClient, verify=_NOBODY)
get = partial(httpx.get, verify=_NOBODY)
post = partial(httpx.post, verify=_NOBODY)
stream = partial(httpx.stream, verify=_NOBODY)
