"""What happens to the traffic of a whole cluster, now and after a change that has not been made.

Promise: for every Service port the shares of its endpoints over all nodes, as the proxies of these nodes would distribute
connections, computed anywhere from the objects alone. Planning is that of the running proxy (`model.planning`).

Invariants: everything here is pure but `cluster.list_cluster`, which reads a cluster once; nodes that plan a service port
alike are planned once, so that the work grows with endpoints and zones and not with nodes times Services.

A change to what planning reads of a node (its name, its zone) must also change `traffic._group_nodes`, which decides which
nodes plan alike; `tests/unit/simulate/test_cluster_traffic.py` compares it with the plan of every single node.
"""
