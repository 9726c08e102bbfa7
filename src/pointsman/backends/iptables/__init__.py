"""iptables mode: kube-proxy's chains, names, comments and order, because people and programs depend on them.

Promise: a partial sync writes the chains of changed service ports and shared chains that differ; a full sync writes what the
tables do not hold as it is written.

Invariants:
* A fragment is text (`fragment`), in the spelling in which iptables-save prints it, so that comparing is comparing lines.
* Within a shared chain the order of services is free; only the jumps to node ports come last in nat KUBE-SERVICES.
* Fragments are committed after the kernel accepted the batch. After a failure everything is read and compared again.
* Service ports that the kernel rejects are left out alone: by the line that the program names, or by trying (`isolate`).

The ledger is not used here: no row is shared. A service port's chains are its own, and a shared chain is the join of all
fragments, so a row per chain would cost a dictionary of all chains and save nothing.

A change that adds a chain must also add it to `static.CHAINS` or `names.is_service_chain`, from which clean-up follows.
A change of a rule's spelling must also keep `rule_text.canonicalize` true for the versions in docs/iptables.md.
"""
