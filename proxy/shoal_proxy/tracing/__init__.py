"""Which requests are traced, and what a span of one holds: pure.

`shoal_proxy.tracer` follows them, `shoal_proxy.exporting` sends what became of them; that alone knows the SDK, and is
never imported where nobody asked for traces.
"""
