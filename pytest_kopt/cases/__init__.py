"""Cases: what a test declares, how it is checked, and the result it sends."""
