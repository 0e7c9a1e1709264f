"""`python -m longspan.launch.ray_main start …`: Ray's own command line, from this interpreter's environment.

The `ray` script beside another interpreter on PATH would start another version.
"""

import sys

from ray.scripts.scripts import main

if __name__ == "__main__":
    sys.argv[0] = "ray"
    main()
