"""The Open Inference Protocol over gRPC, on a separate port that is disabled by default.

Only this package imports grpc and protobuf, and it is imported only if the port is set.
"""
