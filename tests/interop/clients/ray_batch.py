"""Runs in Ray's environment: a cluster of two nodes on this machine, and a batch job spread over it as a RayJob's is.

    python ray_batch.py

The job is what the environment says. The last line that is written is JSON: the exit status, and the cluster's nodes.
"""

import json
import os
import subprocess
import sys
import warnings

from ray.cluster_utils import Cluster

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}


def main() -> None:
    """Run the job and write how it ended."""
    warnings.simplefilter("ignore")
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        cluster.add_node(**NODE)
        # As the entry point of a RayJob finds it.
        environment = {**os.environ, "RAY_ADDRESS": cluster.address}
        command = [sys.executable, "-P", "-m", "shoal_runtime", "batch-ray"]
        done = subprocess.run(command, env=environment, check=False, timeout=400, stdout=sys.stderr)
        sys.stdout.write(json.dumps({"status": done.returncode, "nodes": len(cluster.list_all_nodes())}) + "\n")
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
