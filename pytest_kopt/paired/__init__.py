"""Two versions measured side by side: replicas, blocks and looks."""
