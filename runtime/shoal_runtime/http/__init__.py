"""HTTP of the runtime: sockets, limits, the wire protocol and infer requests."""
