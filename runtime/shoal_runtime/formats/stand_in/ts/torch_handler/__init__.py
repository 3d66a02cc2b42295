"""Default handlers, which archives name instead of a file of their own."""
