"""`sentinel run` for the jobs of the lab, whose user may have nothing but the standard library.

python -m lab.training.run NODES srun ...
"""

from __future__ import annotations

import sys

from sentinel.launcher import launch

if __name__ == "__main__":
    sys.exit(launch(int(sys.argv[1]), sys.argv[2:]))
