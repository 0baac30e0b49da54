"""The command line: a click group whose verbs are loaded when they are used, one file per errand."""
