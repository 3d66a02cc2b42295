"""The protocol in which kubectl carries many streams over one connection. Bytes in, frames out; no sockets."""
