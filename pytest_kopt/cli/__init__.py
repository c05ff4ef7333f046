"""The console script `kopt`: one file a command."""
