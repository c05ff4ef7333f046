"""The gate of a pull request."""
