"""The batch program: score stored rows with the model that serves online, and write each result once.

It owns shards, windows of rows, batches and the records of finished work. Models run in processes of their own
(`engine`, `worker`), so a row that ends its process is found and skipped. The batch program serves no requests and
computes no results itself.
"""
