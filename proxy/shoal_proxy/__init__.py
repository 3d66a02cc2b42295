"""The batching proxy: HTTP in, queue, batch, admission, HTTP out.

It owns callers' protocols, the queue and the forming of batches. It never knows Kubernetes, never imports torch, and
talks to a model only through the Open Inference Protocol (docs/reference/wire-protocol.md).
"""
