"""Authentication of clients and limits on their requests. Pure: no I/O.

`shoal_proxy.credentials` loads API keys and the keys of token issuers.
"""
