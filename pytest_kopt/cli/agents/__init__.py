"""The commands that agents use, and the same over the Model Context Protocol."""
