"""Descriptions of settings that both proxy and runtime have."""

ADDRESS = "HOST:PORT or unix:PATH"
HEAD = "Maximum size of a request line and its headers, with 32 bytes added per header."
HEAD_TIME = "Time limit for a request head, from the start of the connection or from the head's first byte."
