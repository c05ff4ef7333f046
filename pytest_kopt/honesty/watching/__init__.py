"""What a process that runs kernel code looks at around that code: hooks, clock, state, threads."""
