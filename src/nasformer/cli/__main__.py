"""`python -m nasformer.cli`, also for torchrun."""

import sys

from nasformer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
