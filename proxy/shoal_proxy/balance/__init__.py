"""Selection of the peer for request forwarding, and reports of load.

Pure: times are arguments, in monotonic seconds.
"""
