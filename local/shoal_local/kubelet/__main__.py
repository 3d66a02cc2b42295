"""`python -m shoal_local.kubelet`: the kubelet as a separate process."""

import sys

from shoal_local.guarding import guarded

if __name__ == "__main__":
    sys.exit(guarded("shoal_local.kubelet.command_line", "python -m shoal_local.kubelet", sys.argv[1:]))
