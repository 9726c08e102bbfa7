"""The process: a configuration becomes running parts, a changed one is applied, manifests are planned offline.

Promises: a stop, a restart or a failed start leaves the rules in the kernel; a configuration that is bad, or that does not
work on this node, changes nothing; nothing outside the rules is changed before everything that can be checked has been.

`assembly` starts parts in the order of their dependencies and stops them in reverse. A new part is named there, a new
signal or reaction to a changed file in `supervisor`; what a live change may touch is listed in `config/reload.py`.
"""
