"""HTTP/1.1 connections of all components: framing rules, time limits, and the protocols of asyncio that apply them.

Modules are imported one by one: only servers import uvicorn, and only readers of large bodies numpy.
"""
