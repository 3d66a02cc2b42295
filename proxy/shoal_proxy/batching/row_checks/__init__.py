"""Checks at run time that each row's result is independent of the other rows in its batch."""
