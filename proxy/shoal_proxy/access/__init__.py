"""Authentication and limits of clients: decided from a request's headers and the time.

Pure: `shoal_proxy.credentials` reads files, issuers and clocks.
"""
