"""What the proxies say about their load and their objective, and where they are.

``exposition`` reads a proxy's metrics; ``objective`` remembers what pods said of theirs; ``fleet``
remembers which services scale or have one, and which of their pods are ready.
"""
