"""The views of a campaign for people and other programs; every file can be rebuilt."""
