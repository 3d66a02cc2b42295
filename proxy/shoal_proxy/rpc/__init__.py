"""The Open Inference Protocol over gRPC, on a port of its own, disabled by default.

Only this package imports grpc and protobuf, and it is imported only if a port is set.
"""
