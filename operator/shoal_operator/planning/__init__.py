"""Deciding: what to write, what to report, when to look again, and who may write.

``changes`` compares what should exist with what does; ``status`` turns what is observed into
conditions; ``workqueue`` decides which service is looked at next; ``lease`` decides which operator
writes.
"""
