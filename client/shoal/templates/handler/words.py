"""The scores of words. A handler can import modules in its directory, as a script does."""

WORDS = {"good": 1, "great": 2, "lovely": 2, "bad": -1, "awful": -2, "late": -1}
