"""What the modes that write iptables rules (iptables, ipvs) share.

Promise: a rule is written as iptables-save prints it, so that checking a node is a comparison of text.

Invariants:
* `names` has every table and chain, spelled as kube-proxy spells them; `rule_text` formats and parses rules. Both are pure.
* `runners` finds the programs of this host and compares saved tables; equal chains are recognised as whole blocks of text, and
  only those that differ are brought into a canonical form.

A change that adds a chain name must also add it to `names.is_proxy_chain`, by which `explain` distinguishes a proxy's chains from
those of the host's firewall. A change that writes a rule with an option that versions of iptables print differently must also
teach `rule_text.canonicalize` about it.
"""
