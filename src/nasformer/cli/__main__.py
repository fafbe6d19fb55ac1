"""`python -m nasformer.cli` and `torchrun -m nasformer.cli`."""

import sys

from nasformer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
