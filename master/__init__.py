"""Decides who is alive and who owns what, stores it before anybody hears of it, and is never in the way of data."""
