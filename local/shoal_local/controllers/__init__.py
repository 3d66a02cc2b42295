"""The controllers that a cluster for one machine needs, and its scheduler.

They are clients of the API like any other. Sub-packages are pure: objects and the time go in, a
plan comes out. The modules beside ``__main__.py`` watch, and carry plans out.
"""
