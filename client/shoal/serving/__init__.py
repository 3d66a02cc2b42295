"""The decisions of ``shoal serve``: the settings of the processes, and the meaning of their exits.

Pure: no processes, no files, no clock. ``shoal.serve`` and ``shoal.processes`` act on the decisions.
"""
