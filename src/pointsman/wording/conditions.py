"""Every type of condition: what it means, what it blocks, its reasons, and what to do about each.

scripts/conditions.py writes docs/conditions.md from this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

FAMILIES = ("IPv4", "IPv6")
KINDS = ("Service", "EndpointSlice", "Node", "ServiceCIDR", "Manifests")
SETTINGS = ("NfConntrackMax", "...")
ONE = ("",)

_NO_ACTION = "no action needed"
"""How a remedy begins where no action is needed."""
_WAIT = "no action needed at first: after two sync periods, check the watches in `pointsman status`"
_STATUS_LOG = (
    "no action needed at first: it is retried; `pointsman status` and the log have the error of the kernel"
)
_API = "check the network between this node and the API server"
_PORT = "stop the other process, or configure another address; it is retried every few seconds"
_POD = "see the message: `pointsman explain` names the same for one Service"


class ConditionType(NamedTuple):
    """One row: a type, or one per IP family, kind of object or setting."""

    name: str
    meaning: str
    """When it is true."""
    blocks: str
    reasons: Mapping[str, str]
    """What to do, by reason."""
    suffixes: tuple[str, ...] = ONE
    is_constant: bool = True
    """It is shown while it is true as well."""

    def matches(self, type_: str) -> bool:
        rest = type_.removeprefix(self.name)
        return len(rest) < len(type_) and (rest in self.suffixes or (bool(rest) and "..." in self.suffixes))


CONDITION_TYPES = (
    ConditionType(
        "Started",
        "every kind of object was listed and the Node is known",
        "readiness; traffic after two sync periods",
        {"WaitingForObjects": _WAIT},
    ),
    ConditionType(
        "SyncProgress",
        "no change has been pending, and no call to the kernel has lasted, for two sync periods",
        "liveness",
        {
            "SyncOverdue": _STATUS_LOG,
            "WorkerHangs": "no action needed: the kubelet restarts the process; please report it",
        },
        FAMILIES,
    ),
    ConditionType(
        "NodeEligible",
        "the Node exists and is not about to be removed",
        "traffic",
        {
            "NodeNotFound": "set --hostname-override to the name of the Node; similar names are suggested",
            "NodeUnknown": _WAIT,
            "NodeBeingDeleted": "no action needed: load balancers choose other nodes",
            "NodeBeingScaledDown": "no action needed: load balancers choose other nodes",
        },
    ),
    ConditionType(
        "Running",
        "the process is not shutting down (`--drain-period`)",
        "traffic",
        {"Draining": "no action needed: it ends after the drain period"},
    ),
    ConditionType(
        "Family",
        "this machine can serve a family that the Node has an address of",
        "readiness",
        {"NotSupported": "add what is missing and restart, or remove that address from the Node"},
        FAMILIES,
        is_constant=False,
    ),
    ConditionType(
        "Sync",
        "the last sync succeeded",
        "readiness",
        {"NotSyncedYet": _WAIT, "SyncFailed": _STATUS_LOG},
        FAMILIES,
    ),
    ConditionType(
        "Rules",
        "the last drift check found the rules as they were written",
        "readiness",
        {
            "NotCheckedYet": "no action needed: the first check follows the first sync",
            "ModifiedExternally": "find the program that changes our rules; they are restored",
            "Unreadable": _STATUS_LOG,
        },
        FAMILIES,
    ),
    ConditionType(
        "ServicePorts",
        "the kernel accepted every service port",
        "services",
        {"RejectedByKernel": "`pointsman explain` of that Service names the reason; please report it"},
        FAMILIES,
    ),
    ConditionType(
        "RuleOwnership",
        "no other proxy keeps rewriting the rules",
        "nothing",
        {"OtherProxy": "run one proxy per node: docs/install.md"},
        FAMILIES,
    ),
    ConditionType(
        "UniqueAddresses",
        "no two Services request the same address or node port; the message names both",
        "services where a cluster IP is lost, otherwise nothing",
        {"AddressConflict": "give one of the Services another address; until then the older one keeps it"},
        FAMILIES,
    ),
    ConditionType(
        "APIServer",
        "a watch is connected, or was at least answered",
        "services",
        {"Connecting": _WAIT, "Unreachable": _API, "NoAnswer": _API},
    ),
    ConditionType(
        "Watch",
        "the watch of that kind is connected",
        "services",
        {
            "Connecting": _WAIT,
            "APIServerUnreachable": _API,
            "WatchFailed": "the message has the server's answer: role, network or proxy; it is retried",
        },
        KINDS,
    ),
    ConditionType(
        "Objects",
        "every object of that kind can be used",
        "services",
        {"ObjectsRejected": "correct the objects that the message names; the others are served"},
        KINDS,
    ),
    ConditionType(
        "HealthCheckNodePorts",
        "every health check node port is open",
        "readiness",
        {
            "BindFailed": "no action needed at first: the message has the reason, and it is retried after the next sync"
        },
    ),
    ConditionType(
        "Listening",
        "the health and the metrics port are open",
        "readiness",
        {
            "BindFailed": _PORT,
            "OtherProxyRunning": "run one proxy per node, and keep kube-proxy off this one: docs/install.md",
        },
    ),
    ConditionType(
        "ServingCertificate",
        "the files of `--tls-cert-file`, `--tls-private-key-file` and `--client-ca-file` can be used as they are now",
        "nothing",
        {"Unusable": "correct the files that the message names; they are read again when they change"},
    ),
    ConditionType(
        "AccessReviews",
        "the API server answered the last question about a client of the metrics port; only with `--secure-metrics`",
        "nothing",
        {
            "ReviewFailed": "allow this proxy to create tokenreviews and subjectaccessreviews (chart: secureServing.metrics), or check "
            "the network to the API server"
        },
    ),
    ConditionType(
        "Datapath",
        "the last connection of the datapath probe was answered; only with `--probe-addresses`",
        "readiness",
        {"NotProbedYet": "no action needed: the first probe follows the first sync", "ProbeFailed": _POD},
        FAMILIES,
    ),
    ConditionType(
        "NodeStatus",
        "the Node could be written; only with `--node-condition` or `--remove-startup-taint`",
        "nothing",
        {
            "PatchFailed": "allow the service account to patch nodes/status and nodes: docs/operations.md; it is tried again"
        },
    ),
    ConditionType(
        "Configuration",
        "the last change of the configuration file is in use",
        "services",
        {"ReloadRejected": "`pointsman check --config FILE` shows what is wrong with the file"},
    ),
    ConditionType(
        "FlowCleanup",
        "stale flows could be deleted",
        "nothing",
        {"CleanupFailed": "the message names the kernel module or capability that is missing"},
    ),
    ConditionType(
        "Forwarding",
        "the kernel forwards packets, also those that arrive from local pods or at the node's address; does not matter while "
        "every endpoint is at an address of the node",
        "readiness",
        {
            "ForwardingOff": "sysctl -w net.ipv4.ip_forward=1, net.ipv6.conf.all.forwarding=1",
            "InterfaceNotForwarding": "sysctl -w net.ipv4.conf.INTERFACE.forwarding=1",
        },
        FAMILIES,
        is_constant=False,
    ),
    ConditionType(
        "ForeignRules",
        "no chain of another program drops the first packet of every connection; chains that drop by condition are left to "
        "`explain`",
        "readiness; services when only the node's own connections, or those to its own addresses, are dropped",
        {"ForeignDrop": "the owner of that table has to accept these packets"},
        FAMILIES,
        is_constant=False,
    ),
    ConditionType(
        "PodRoutes",
        "this node has a route to every ready endpoint on it",
        "services; readiness when it has a route to none",
        {"NoRoute": "look at the network plugin, which makes these routes: ip route get ADDRESS"},
        FAMILIES,
        is_constant=False,
    ),
    ConditionType(
        "LocalDetection",
        "clusterCIDR, or what detectLocalMode names, covers the Node's pod ranges and the pods on it",
        "nothing",
        {
            "PodRangeNotDetected": "set clusterCIDR to the range of all pods, or another detectLocalMode",
            "PodsNotDetected": "set clusterCIDR to the range of all pods, or another detectLocalMode",
        },
        FAMILIES,
        is_constant=False,
    ),
    ConditionType(
        "BridgeNetfilter",
        "packets between pods on a Linux bridge with a shared network pass through our rules",
        "services",
        {"BridgeBypassesRules": "modprobe br_netfilter, and set net.bridge.bridge-nf-call-iptables to 1"},
        FAMILIES,
        is_constant=False,
    ),
    ConditionType(
        "ReversePath",
        "strict reverse path filtering (rp_filter) drops no packets",
        "nothing",
        {"ReversePathDrops": "correct the routes, or set rp_filter of the interface to 2 (loose)"},
        FAMILIES,
        is_constant=False,
    ),
    ConditionType(
        "ConnectionTracking",
        "the connection tracking table has room for new connections",
        "readiness when it is full, otherwise nothing",
        {
            "ConntrackFull": "raise net.netfilter.nf_conntrack_max (conntrack.maxPerCore)",
            "ConntrackNearlyFull": "raise net.netfilter.nf_conntrack_max (conntrack.maxPerCore)",
        },
        is_constant=False,
    ),
    ConditionType(
        "ResetGone",
        "connections to removed endpoints can be reset where a Service requests it",
        "nothing",
        {"ResetGoneNeedsLooseTracking": "sysctl -w net.netfilter.nf_conntrack_tcp_loose=1"},
        is_constant=False,
    ),
    ConditionType(
        "Sysctl",
        "that kernel setting has the configured value",
        "nothing",
        {
            "NotWritable": "set it on the host",
            "Restored": "find the program that changed it, or configure its value; the condition ends by itself",
            "ChangedExternally": "find the program that keeps changing it, or configure its value",
        },
        SETTINGS,
        is_constant=False,
    ),
    ConditionType(
        "StateDirectory",
        "files can be created in the state directory",
        "nothing",
        {"NotWritable": "free space there, make it writable, or name another one with --state-dir"},
        is_constant=False,
    ),
    ConditionType(
        "Descriptors",
        "at least a tenth of the file descriptors that this process may have is free",
        "nothing",
        {"NearLimit": "raise the limit: LimitNOFILE of the unit, or that of the container runtime"},
        is_constant=False,
    ),
    ConditionType(
        "Memory",
        "at least a tenth of the memory limit of the cgroup of this process is free",
        "nothing",
        {"NearLimit": "raise the limit: resources.limits.memory of the pod, or MemoryMax of the unit"},
        is_constant=False,
    ),
    ConditionType(
        "KernelFeatures",
        "the kernel has the features that Services request",
        "nothing",
        {
            "FlowTimeoutsMissing": "remove the annotation, or use a kernel with CONFIG_NF_CONNTRACK_TIMEOUT",
            "HashMissing": "load nft_hash, or remove the annotation",
            "SchedulerMissing": "load the modules that the message names",
        },
        is_constant=False,
    ),
    ConditionType(
        "TablesReadable",
        "iptables can list its tables, so that leftovers are found and removed (iptables and ipvs mode)",
        "nothing",
        {"Unreadable": "remove rules of nft from the tables of iptables"},
        is_constant=False,
    ),
    ConditionType(
        "AddressesRouted",
        "the addresses of Services on `kube-ipvs0` have local routes (ipvs mode)",
        "nothing",
        {"NoLocalRoute": "check `ip rule`"},
        is_constant=False,
    ),
    ConditionType(
        "OOMScore",
        "the kernel does not kill this process before others",
        "nothing",
        {"NotPermitted": "give the pod priorityClassName system-node-critical, or the unit OOMScoreAdjust"},
        is_constant=False,
    ),
)


def find_remedy(type_: str, reason: str) -> str:
    """Return what to do about a condition; empty where there is nothing to do, or when it is not in the table."""
    found = next((row.reasons.get(reason, "") for row in CONDITION_TYPES if row.matches(type_)), "")
    return "" if found.startswith(_NO_ACTION) else found
