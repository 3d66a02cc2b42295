"""`python -m shoal_local.controllers`: controllers and scheduler together."""

import sys

from shoal_local.guarding import guarded

if __name__ == "__main__":
    sys.exit(guarded("shoal_local.controllers.loops", "python -m shoal_local.controllers", sys.argv[1:]))
