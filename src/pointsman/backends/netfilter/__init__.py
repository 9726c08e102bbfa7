"""What the modes that write iptables rules (iptables, ipvs) share.

`names` are upstream's chain names, `spelling` the parts of a rule as iptables-save prints them, `tables` the one parser and the one
comparer of saved tables, `runners` the programs of this host. Everything but `runners` is pure.

A change that adds a chain name must also add it to `names.is_proxy_chain`, by which `explain` distinguishes a proxy's chains from
those of the host's firewall.
"""
