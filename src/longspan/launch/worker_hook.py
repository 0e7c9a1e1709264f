"""Sets a node's own values in every Ray worker of our job, where Ray was started by somebody else.

Ray runs it in each worker process before any task (`worker_process_setup_hook`). The values come from the job's
runtime environment, keyed by node address, so that the head's network interface never reaches another node.
"""

import json
import os

import ray

from longspan.launch.words import NODE_ENV_VARIABLE


def apply() -> None:
    """Sets this node's values; a value that the user set on the node is respected."""
    by_address: dict[str, dict[str, str]] = json.loads(os.environ.get(NODE_ENV_VARIABLE, "{}"))
    for key, value in by_address.get(ray.util.get_node_ip_address(), {}).items():
        os.environ.setdefault(key, value)
