"""What ``shoal serve`` decides: which settings the processes get, and what their exits mean.

Pure: no processes, no files, no clock. ``shoal.serve`` and ``shoal.processes`` do what is decided
here.
"""
