"""Values and arithmetic that every part shares.  Imports the standard library and numpy, and nobody of ours."""
