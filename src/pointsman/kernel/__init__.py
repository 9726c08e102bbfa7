"""Edges to the Linux kernel: netlink, sysctls, commands."""
