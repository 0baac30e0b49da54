"""`python -m plugml` is the same as `plugml`."""

from plugml.cli.main import main

if __name__ == "__main__":
    main()
