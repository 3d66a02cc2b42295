"""`python -m shoal_local.apiserver`: the API server as a separate process."""

import sys

from shoal_local.guarding import guarded

if __name__ == "__main__":
    sys.exit(guarded("shoal_local.apiserver.server", "python -m shoal_local.apiserver", sys.argv[1:]))
