"""nftables mode: one table, shared chains, elements over netlink."""
