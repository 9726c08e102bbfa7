"""What the modes that write iptables rules (iptables, ipvs) share.

`names` are the tables and chains, `rule_text` is how rules are spelled and parsed, `runners` the programs of this host and the one
comparer of saved tables. Everything but `runners` is pure.

A change that adds a chain name must also add it to `names.is_proxy_chain`, by which `explain` distinguishes a proxy's chains from
those of the host's firewall.
"""
