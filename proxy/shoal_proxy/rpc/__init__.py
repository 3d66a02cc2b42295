"""gRPC port for the Open Inference Protocol, disabled by default.

Only this package imports grpc and protobuf, and it is imported only if a port is set.
"""
