"""The batching core: the queue, when a batch closes, and how rows are merged and split.

Pure: no I/O, no clock; time is an argument in monotonic seconds. Rows are counted, not requests.
"""
