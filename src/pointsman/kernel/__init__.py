"""Interfaces of the Linux kernel: netlink and its families, conntrack, sysctls, inotify, the iptables programs.

Promise: callers see values and `KernelError`s (`pointsman.errors`), never packed bytes, errno checks or program output.

Invariants:
* Nothing here depends on what a proxy needs; modules speak the kernel's protocols and have no notion of a Service.
* Netlink is hand-packed (`netlink`, `attributes`): one nftables element costs less than a microsecond. Answers are taken from
  the kernel only, and an interrupted listing is repeated.
* A socket belongs to the network namespace of the thread that opened it, and to one thread at a time.
* What a kernel does not support raises NotSupported, naming the kernel option that is missing.
* Names tell the direction: `pack_` makes an attribute or expression, `encode_` a whole payload, `parse_` and `decode_` read answers.

A change that adds a further netlink family does so in a class over `NetlinkSocket`, which yields one `Reply` for each request, and
makes errors with `build_kernel_error`, so that callers can tell "busy", "not allowed" and "not supported" apart.
A change that uses a further nf_tables number must add it to `nf_tables`, which a test compares with the kernel's header.
A change that writes a sysctl must do so through `Sysctls.ensure`, so that clean-up can restore it.
"""
