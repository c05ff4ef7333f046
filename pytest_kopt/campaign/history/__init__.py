"""Sums over a campaign's record: computed from ledger and evidence, never stored."""
