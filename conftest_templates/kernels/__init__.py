"""The kernels under optimisation."""
