"""Who may ask, in whose name, and how much: decided from a request's headers and the time.

Pure: files and issuers are read, and clocks too, by `shoal_proxy.credentials`.
"""
