"""A campaign on disk: manifest, ledger, snapshots, and applying a decision to the tree."""
