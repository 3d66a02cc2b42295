"""The batching proxy: accepts HTTP and gRPC requests, admits, queues and batches them.

It owns the clients' protocols, the queue and the batching. It never uses the Kubernetes API, never imports torch, and
reaches a model only through the Open Inference Protocol (docs/reference/wire-protocol.md).
"""
