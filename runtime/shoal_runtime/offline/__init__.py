"""The batch program: rows that lie somewhere, scored by the model that serves online, and their answers written once.

It owns shards, windows of rows, batches made of them, and what is written down of what was done. Models run in
processes of their own (`engine`, `worker`), so a row that ends one is found and passed. It never listens for callers,
and never computes.
"""
