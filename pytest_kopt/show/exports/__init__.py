"""The exports of a session to reviewers and their tools: hook implementations, and files."""
