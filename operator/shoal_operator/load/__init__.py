"""What the proxies say about their load, and where they are.

``exposition`` reads a proxy's metrics; ``fleet`` remembers which services scale and which of their
pods are ready. Pure: no I/O, no clock.
"""
