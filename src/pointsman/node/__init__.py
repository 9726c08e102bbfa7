"""What a node is and does: its facts, one proxy per IP family, what their syncs report, snapshots for the commands."""
