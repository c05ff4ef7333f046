"""The device a process measures on: choosing it, naming it, having it to oneself."""
