"""Comparing tensors: SNR, tolerances, gates, diagnosis, determinism (torch only here)."""
