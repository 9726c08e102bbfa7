"""The configuration of kube-proxy: types, defaults, flags, files, validation, and what a change of it means.

Promises: every file and command line of kube-proxy 1.37 is read as kube-proxy reads it; all problems are listed at once,
each with its field or flag and the rule; values are frozen. Nothing here touches the machine but `parse_run`, which reads
the file that `--config` names.

A change that adds a field must also say in `reload` whether it applies live; one that adds a flag is a row of `own_flags`
(or `kube_proxy_flags`), and docs/flags.md is generated from it.
"""
