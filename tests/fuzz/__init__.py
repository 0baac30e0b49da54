"""Parsers against hypothesis: whatever comes in, they give a value or their own error."""
