"""What the handler and its model share."""

LABELS = ("negative", "positive")
WEIGHTS = {"awful": -2.0, "bad": -1.0, "good": 1.0, "great": 2.0}
