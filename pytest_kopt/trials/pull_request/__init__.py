"""The gate of a pull request, and the comparison of two toolchains on one tree."""
