"""`python -m pointsman` is the `pointsman` command."""

import sys

from pointsman.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
