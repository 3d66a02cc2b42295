"""How callers' connections are bounded: decisions about time, bytes and numbers, without I/O and without a clock."""
