"""A scripted agent with numpy as its server, and what it can prove of a program: `plugml conform`."""
