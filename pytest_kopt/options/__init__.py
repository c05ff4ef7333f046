"""Command-line and ini options, and the settings they become."""
