"""Limits on connections and bodies of clients. Pure: no I/O, no clock."""
