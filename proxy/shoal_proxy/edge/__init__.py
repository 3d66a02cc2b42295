"""Limits on clients' connections: decisions about time, bytes and numbers. Pure: no I/O, no clock."""
