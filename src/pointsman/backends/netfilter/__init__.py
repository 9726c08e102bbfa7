"""What the modes that write iptables rules share."""
