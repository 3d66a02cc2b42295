"""Objects by key, one revision counter, and a bounded log of changes. Pure: no I/O, no clock."""
