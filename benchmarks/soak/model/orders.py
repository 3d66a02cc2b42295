"""What a row's first number makes the model do; honest rows have none below zero."""

RAISE, OUT_OF_MEMORY, EXIT, INTERRUPT, DIE, OVERFLOW = -1, -2, -3, -4, -5, -6
