"""The files that a campaign shows: made from its ledger and evidence, and made again at will."""
