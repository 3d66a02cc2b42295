"""Which peer a request is forwarded to, and how load is reported: values and their rules.

Pure: times are arguments, in monotonic seconds.
"""
