"""Command-line entry points: one module per sub-command."""
