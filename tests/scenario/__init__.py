"""Stories of a few machines, each a text file that holds its own full trace.

    python -m pytest tests/scenario                  compare
    PLUGML_REWRITE=1 python -m pytest tests/scenario write the traces anew, to be read in the diff
"""
