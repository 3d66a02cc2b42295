"""What services do now, from what their proxies say of themselves: between two looks, in figures and in words.

It never asks anybody: `shoal.looking` does, `shoal.top` and `shoal.dashboard` show it.
"""
