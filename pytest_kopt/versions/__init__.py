"""Another version of the kernel beside the working tree's: files, modules, functions."""
