"""`python -m shoal_local.services`: the forwarder as a separate process."""

import sys

from shoal_local.guarding import guarded

if __name__ == "__main__":
    sys.exit(guarded("shoal_local.services.forwarding", "python -m shoal_local.services", sys.argv[1:]))
