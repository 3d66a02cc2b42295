"""`python -m shoal_local.controllers`: the controllers and the scheduler as a process of their own."""

import sys

from shoal_local.guarding import guarded

if __name__ == "__main__":
    sys.exit(guarded("shoal_local.controllers.command_line", sys.argv[1:]))
