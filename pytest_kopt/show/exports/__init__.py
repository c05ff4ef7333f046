"""What a session hands to reviewers and their tools: hook implementations, and files."""
