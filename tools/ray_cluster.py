"""Several nodes of a Ray cluster as processes of this machine; for tests and to try things out.

The address is the first line of stdout. Then each line of stdin is a command: ``add`` adds a node.
The end of stdin, or SIGTERM, ends all of them.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from types import FrameType

#: The least that Ray takes is enough: no arrays go through it.
STORE_BYTES = 100 * 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=3, help="besides the head, which has no CPUs")
    parser.add_argument("--cpus", type=int, default=1, help="processors that each node offers")
    arguments = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    head = {
        "num_cpus": 0,
        "object_store_memory": STORE_BYTES,
        "include_dashboard": False,
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)

    def add() -> None:
        cluster.add_node(num_cpus=arguments.cpus, object_store_memory=STORE_BYTES)

    try:
        for _ in range(arguments.nodes):
            add()
        print(cluster.address, flush=True)
        for line in sys.stdin:
            if line.strip() == "add":
                add()
                print("added", flush=True)
    except KeyboardInterrupt:
        pass
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
