"""The machine that the proxy runs on, except for its own rules.

* facts: addresses, routes, settings, and netfilter rules of other programs (`host_facts`, `nft_*`, `legacy_chains`);
* observations: packets followed through netfilter (`trace`), connection attempts (`reach`);
* what the process does to its host beside rules: kernel settings, memory, descriptors, the instance lock.

Rules of other programs may be anything: what is not understood becomes a match of unknown result, never an error.
Nothing here writes rules, except the table that `trace` owns; a change that adds another object must also make
clean-up remove it (`backends/nftables/mode.py`). Readers use sockets of their own and may run on any thread.
"""
