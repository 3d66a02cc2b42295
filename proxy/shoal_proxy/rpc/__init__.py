"""The Open Inference Protocol over gRPC, on a port of its own, off unless asked for.

Only this package knows grpc and protobuf; nothing imports it before a port is set.
"""
