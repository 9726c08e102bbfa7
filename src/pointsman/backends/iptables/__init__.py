"""iptables mode: the chains and rules kube-proxy programs, name for name."""
