"""httpx for HTTP without TLS: by default each of its clients first reads every authority of the web, 50 ms long."""

import ssl
from functools import partial

import httpx

_TRUSTS_NONE = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts no authority

Client = partial(httpx.Client, verify=_TRUSTS_NONE)
AsyncClient = partial(httpx.AsyncClient, verify=_TRUSTS_NONE)
get = partial(httpx.get, verify=_TRUSTS_NONE)
post = partial(httpx.post, verify=_TRUSTS_NONE)
delete = partial(httpx.delete, verify=_TRUSTS_NONE)
put = partial(httpx.put, verify=_TRUSTS_NONE)
stream = partial(httpx.stream, verify=_TRUSTS_NONE)
