"""The channel between a program and its agent: in-memory files and a bell.  SPEC.md is the contract."""
