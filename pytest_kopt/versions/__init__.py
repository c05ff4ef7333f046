"""Another version of the kernel next to the working tree's: files, modules, functions."""
