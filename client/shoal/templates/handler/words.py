"""What words are worth. A handler imports the modules beside it as any script does."""

WORDS = {"good": 1, "great": 2, "lovely": 2, "bad": -1, "awful": -2, "late": -1}
