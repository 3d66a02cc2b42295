"""The batch program: score stored rows with the model that serves online, and write each result once.

The batch program owns shards, windows of rows, batches and the records of finished shards. Each model runs in a
process of its own (`engine`, `worker`), so a row that crashes the process is found and skipped.
"""
