"""Every client in every language against one scripted agent, and the golden files that all of them share."""
