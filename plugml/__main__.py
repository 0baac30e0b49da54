"""`python -m plugml` is the same as `plugml`."""

import sys

from plugml.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
