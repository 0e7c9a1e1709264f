"""How the node's program gets there: its sources travel over the session, so that a bare host needs only Python. Pure."""

import json
from collections.abc import Mapping

# The modules that run on a node; the first two of each name are packages that the far side makes up.
NODE_MODULES = (
    "gather",
    "gather_file",
    "gather_gpu",
    "gather_net",
    "gather_model",
    "trial",
    "rails_node",
    "node",
)
COLLECTIVE_MODULES = ("collective",)
OLD = "longspan-old "

# Run by `python -c` on the node: reads {"sources", "main", "env"} as the first line of standard input, imports the
# modules from it, and runs the main one, which reads the rest. Ours win over a Longspan that is installed there.
BOOT = """
import sys
if sys.version_info < (3, 11):
    sys.stdout.write("longspan-old %d.%d.%d\\n" % sys.version_info[:3])
    sys.stdout.flush()
    sys.exit(0)
import json, os, importlib.abc, importlib.util
doc = json.loads(sys.stdin.readline())
os.environ.update(doc["env"])
class Sent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in ("longspan", "longspan.preflight") or name in doc["sources"]:
            package = name not in doc["sources"]
            return importlib.util.spec_from_loader(name, self, is_package=package)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        name = module.__name__
        if name in doc["sources"]:
            exec(compile(doc["sources"][name], name + ".py", "exec"), module.__dict__)
sys.meta_path.insert(0, Sent())
importlib.import_module(doc["main"]).main()
"""


def bundle(sources: Mapping[str, str], main: str, env: Mapping[str, str]) -> str:
    """The first line that BOOT reads.

    Args:
        sources: short module name ("gather") -> its text.
        main: the module whose `main` is run.
        env: set before anything is imported; on standard input, since it may hold a secret, never in argv.
    """
    return json.dumps(
        {
            "sources": {f"longspan.preflight.{name}": text for name, text in sources.items()},
            "main": f"longspan.preflight.{main}",
            "env": dict(env),
        }
    )
