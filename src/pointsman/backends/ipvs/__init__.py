"""ipvs mode: kube-proxy's virtual servers, ipsets, addresses and rules.

Promise: the kernel is read at a full sync and then owned, so that a sync touches only what changed, and the iptables program runs
only when a rule changes.

Invariants:
* A plan compiles to rows (`compile`), which the ledger (`backends/ledger.py`) counts and assigns to owners. Compiling is pure:
  schedulers are probed before.
* `KernelState` changes only by the steps that the kernel acknowledged (`steps`).
* Nothing is one transaction: the order of the steps carries the guarantees. Nothing is removed before it is known what is rejected.
* A TCP real server with connections is drained, never cut off (`steps.Draining`).

A change that adds a kind of row must also add its steps, read it in `sockets` and compare it in `check`.
A change that adds a step must also say how it changes `KernelState`, and find its place in the order of `plan_steps`.
A change that adds a chain or a set must also add it to clean-up.
"""
