"""The sync loop: when to sync, what to sync, what to keep when it fails."""
