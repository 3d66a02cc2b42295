"""Which sibling a request is handed to, if any, and how load is told to whoever asks: values and their rules.

Pure: times are arguments, in monotonic seconds.
"""
