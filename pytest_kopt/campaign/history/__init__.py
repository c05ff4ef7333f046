"""What the record of a campaign adds up to: computed from ledger and evidence, never stored."""
