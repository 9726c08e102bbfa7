"""The text of the findings that `explain` makes about a question, a service port and the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pointsman.model.findings import Code

Values = Mapping[str, str]
"""Parameters as text: lists are joined, clients named."""
Template = str | Callable[[Values], str]

_PACKETS = "packets from {clients} to {endpoints}"
_CHAIN = "chain {chain} of table {table} ({hook}, priority {priority})"
_PROBE = "connections from this node to {places} fail: {detail}"
_DIRECT = "packets to its own address bypass this proxy: check the pod and the network plugin"
_TRACE = "every endpoint that was tried answers directly: follow a packet with `pointsman trace`"
_CONNTRACK = "{count} of {max} connections tracked (net.netfilter.nf_conntrack_count and _max)"


def _render_loose_tracking(values: Values) -> str:
    of_services = f" of {values['services']}" if "services" in values else ""
    return f"net.netfilter.nf_conntrack_tcp_loose is 0: connections to removed endpoints{of_services} are not reset"


_DETECT_PODS = "set clusterCIDR to the range of all pods, or detectLocalMode to what the network plugin does: docs/config.md"
_RAISE_CONNTRACK = "raise net.netfilter.nf_conntrack_max (conntrack.maxPerCore in the configuration); conntrack -L lists them"


def _name_source(values: Values) -> str:
    return "is in the manifests" if values["source"] == "manifests" else "is known to the running proxy"


def _suggest_service(values: Values) -> str:
    if values["similar"]:
        return f"did you mean {values['similar']}?"
    return "check its name and namespace"


def _render_node_port_addresses(values: Values) -> str:
    if not values["usual"]:
        return (
            "without nodePortAddresses, node ports are served at every address of this node: configure a range that "
            "contains one of them"
        )
    return f"in {values['mode']} mode the default is {values['usual']}; is it behind NAT? then set nodePortAddresses"


def _render_no_local_endpoint(values: Values) -> str:
    detail = f"they run on {values['nodes']}"
    if values["local"]:
        detail = f"those here cannot be used: {values['local']}"
    return (
        f"{values['policies']} Local, and no usable endpoint runs on this node ({values['node']}): {detail}"
    )


def _render_source_ranges(values: Values) -> str:
    what = "the load balancer address drops"
    if values["annotation"]:
        what = f"every frontend but the cluster IP drops (annotation {values['annotation']})"
    subject = values["address"] or "the node's own address"
    return (
        f"{what} {values['client']}: {subject} is not in loadBalancerSourceRanges ({values['sourceRanges']})"
    )


def _render_unrestricted(values: Values) -> str:
    free = "the cluster IP is" if values["nodePortRestricted"] else "node port and cluster IP are"
    return f"add the client's address to loadBalancerSourceRanges; {free} not restricted"


def _render_foreign(verb: str, verbs: str, rest: str = "") -> Callable[[Values], str]:
    def render(values: Values) -> str:
        action = verbs if values["certain"] else f"may {verb}"
        rule = f"its rule `{values['rule']}`" if values["rule"] else f"its policy is {values['policy']}"
        return f"{_CHAIN} {action} {_PACKETS}{rest}: ".format_map(values) + rule

    return render


def _render_foreign_drop(values: Values) -> str:
    reject = values["action"] == "reject"
    return _render_foreign("drop", "rejects" if reject else "drops")(values)


MESSAGES: Mapping[Code, Template] = {
    Code.ALSO_REQUESTED: "{servicePort} requests {frontend} as well and does not get it: {holder} holds it",
    Code.AMBIGUOUS: "{service} exists in several namespaces: {services}",
    Code.CLIENT_OF_OTHER_FAMILY: "{address} cannot connect to an {family} address, and this Service has no other",
    Code.ENDPOINT_NOT_USED: "{endpoint} is an endpoint of {servicePort} and gets no connections from this node: {reasons}",
    Code.ENDPOINT_USED: "{endpoint} is an endpoint of {servicePort} and gets connections",
    Code.FAMILY_NOT_SERVED: "this proxy does not serve {family}",
    Code.NODE_ADDRESS: "{address} is this node's own address and no Service has node port {nodePort}",
    Code.NO_SERVICE_AT_ADDRESS: lambda values: (
        f"{values['address']} is in the service range {values['range']}, but no Service has it; packets to it "
        f"{'are dropped' if values['dropped'] else 'pass this proxy and time out'}"
    ),
    Code.NO_SUCH_NODE_PORT: "no Service has node port {nodePort}",
    Code.NO_SUCH_POD: lambda values: f"no endpoint of pod {values['pod']} {_name_source(values)}",
    Code.NO_SUCH_PORT: "Service {service} has no port {port}, only {ports}",
    Code.NO_SUCH_SERVICE: lambda values: (
        f"no Service {values['service']} {_name_source(values)} ({values['known']} Services known)"
    ),
    Code.NOT_A_SERVICE_ADDRESS: "no Service has the address {address}; packets to it bypass this proxy",
    Code.NOT_PLANNED: (
        "{servicePort} ({family}) is not planned: a sync is pending, or another Service has its cluster IP"
    ),
    Code.NOT_STARTED: "nothing is programmed yet: waiting for {waitingFor}",
    Code.SYNC_FAILING: "the last {family} sync failed, the previous rules are kept: {error}",
    Code.WRONG_ENDPOINT_PORT: "Services use this endpoint at {ports}, not at {port}",
    Code.WRONG_PORT: lambda values: (
        f"{values['address']} serves {values['ports']}, not this port or protocol; packets to other ports "
        f"{'are rejected' if values['rejected'] else 'bypass this proxy and usually time out'}"
    ),
    Code.EMPTY_ENDPOINT_SLICES: "its EndpointSlices ({slices}) have no usable endpoint",
    Code.EXTERNAL_IPS_IGNORED: "externalIPs are disabled by the feature gate AllowServiceExternalIPs",
    Code.HEALTH_CHECK_FAILS: "health check node port {nodePort} returns 503 on this node",
    Code.HINTS_IGNORED: "{reason}",
    Code.KERNEL_DIFFERS: "the kernel does not match the desired state: {objects}",
    Code.NODE_NAME_MISMATCH: (
        "endpoints run on node {found!r}, but this proxy's node name is {node!r}: probably the same host, so "
        "none counts as local"
    ),
    Code.NODE_PORT_ADDRESSES: "{servicePort} has node port {nodePort}, but not at this address: {reason}",
    Code.NO_NODE_PORT_ADDRESS: (
        "node port {nodePort} is served nowhere: nodePortAddresses selects no {family} address that this node has on "
        "an interface"
    ),
    Code.NO_ENDPOINT_SLICES: "no {family} EndpointSlice belongs to Service {service}",
    Code.NO_LOCAL_ENDPOINT: _render_no_local_endpoint,
    Code.NO_READY_ENDPOINTS: "none of its {count} endpoints can be used: {endpoints}",
    Code.NOT_SYNCED_YET: "its latest change is not in the kernel yet",
    Code.PORT_NAME_MISMATCH: "the Service's port is {port}, its EndpointSlices have {offered}",
    Code.RESET_GONE_NEEDS_LOOSE_TRACKING: _render_loose_tracking,
    Code.SOURCE_RANGES: _render_source_ranges,
    Code.BRIDGE_BYPASSES_RULES: (
        "replies between pods at bridge {bridge} reach clients with the endpoint's address instead of the Service's: netfilter does "
        "not see packets of that bridge ({setting} is not 1); concerns {endpoints}"
    ),
    Code.CONNTRACK_FULL: f"the conntrack table is full: {_CONNTRACK}; the kernel drops the first packet of new connections",
    Code.CONNTRACK_NEARLY_FULL: f"the conntrack table is nearly full: {_CONNTRACK}",
    Code.EARLIER_NAT: _render_foreign("redirect", "redirects", " before the proxy sees them"),
    Code.FOREIGN_DROP: _render_foreign_drop,
    Code.FOREIGN_MASQUERADE: _render_foreign(
        "replace the source address of", "replaces the source address of"
    ),
    Code.FOREIGN_MAY_DROP: _render_foreign("drop", "drops"),
    Code.FORWARDING_OFF: (
        "{setting} is 0: this node forwards no {family} packets, so none reach {endpoints} from {clients}"
    ),
    Code.INTERFACE_NOT_FORWARDING: (
        "packets that arrive on {interfaces} are not forwarded (forwarding of that interface is 0)"
    ),
    Code.NO_ROUTE: "this node has no route to {endpoints}: {error}",
    Code.NOT_TRACKED: _render_foreign("exclude", "excludes", " from connection tracking"),
    Code.PODS_NOT_DETECTED: "{setting} does not cover local pods: {pods}; their packets to Services are treated as external clients'",
    Code.POD_RANGE_NOT_DETECTED: (
        "{setting} does not cover the Node's spec.podCIDRs {ranges}: packets of its pods to Services are treated as external clients'"
    ),
    Code.REVERSE_PATH_DROPS: (
        "{count} packets of the last {seconds} s were dropped because the route back to their source uses another interface; "
        "rp_filter is 1 on {interfaces}"
    ),
    Code.STRICT_REVERSE_PATH: (
        "packets of {address} that arrive on {interfaces} are dropped: rp_filter is 1 there, and the route back "
        "uses {interface}"
    ),
    **dict.fromkeys(
        (
            Code.ENDPOINT_BLOCKED,
            Code.ENDPOINT_REFUSED,
            Code.ENDPOINT_SILENT,
            Code.ENDPOINT_UNREACHABLE,
            Code.FRONTEND_BLOCKED,
            Code.FRONTEND_REFUSED,
            Code.FRONTEND_SILENT,
            Code.FRONTEND_UNREACHABLE,
        ),
        _PROBE,
    ),
}

REMEDIES: Mapping[Code, Template] = {
    Code.ALSO_REQUESTED: "give one of the two Services another address; until then the older one keeps it",
    Code.AMBIGUOUS: "name one as NAMESPACE/SERVICE",
    Code.CLIENT_OF_OTHER_FAMILY: "name the client by its address of that family, or make the Service dual-stack",
    Code.ENDPOINT_USED: _DIRECT,
    Code.NODE_ADDRESS: "a process on the node has to listen there itself",
    Code.NO_SERVICE_AT_ADDRESS: (
        "the Service was deleted or never existed; does the client use an old address, or a stale DNS answer?"
    ),
    Code.NO_SUCH_NODE_PORT: lambda values: (
        f"node ports in use: {values['nodePorts']}" if values["nodePorts"] else "no Service has a node port"
    ),
    Code.NO_SUCH_POD: "pods are known by the EndpointSlices of Services; is it ready, and does a Service select it?",
    Code.NO_SUCH_SERVICE: _suggest_service,
    Code.NOT_A_SERVICE_ADDRESS: (
        "for a cluster IP, does its Service exist? for a load balancer, is the address in the Service's status? "
        "for an external IP, in spec.externalIPs?"
    ),
    Code.NOT_PLANNED: "`pointsman explain` finds out which",
    Code.SYNC_FAILING: "new changes do not reach the kernel until this is repaired; the sync is retried",
    Code.WRONG_ENDPOINT_PORT: _DIRECT,
    Code.EMPTY_ENDPOINT_SLICES: "no pod matches the selector, or none has an address yet",
    Code.HEALTH_CHECK_FAILS: "load balancers avoid this node because of it",
    Code.KERNEL_DIFFERS: (
        "the rules were modified externally, or a sync is running; `pointsman verify` lists all differences"
    ),
    Code.NODE_NAME_MISMATCH: "start the proxy with --hostname-override={found} (nodeName of the pods must match exactly)",
    Code.NODE_PORT_ADDRESSES: "set nodePortAddresses in the configuration, or use an address that it selects",
    Code.NO_NODE_PORT_ADDRESS: _render_node_port_addresses,
    Code.NO_ENDPOINT_SLICES: (
        "its selector matches no pod, or it has no selector and no slices with the label "
        "kubernetes.io/service-name={name} exist"
    ),
    Code.NO_LOCAL_ENDPOINT: (
        "send traffic to a node that runs one (load balancers find it by the health check node port), "
        "or use policy Cluster"
    ),
    Code.NO_READY_ENDPOINTS: "check the readiness probes of these pods: kubectl describe pod",
    Code.PORT_NAME_MISMATCH: (
        "port name and protocol must be the same in both; for a named targetPort, does the pod declare that name?"
    ),
    Code.RESET_GONE_NEEDS_LOOSE_TRACKING: (
        "sysctl -w net.netfilter.nf_conntrack_tcp_loose=1, and in /etc/sysctl.d for the next boot"
    ),
    Code.SOURCE_RANGES: _render_unrestricted,
    Code.BRIDGE_BYPASSES_RULES: "modprobe br_netfilter && sysctl -w {setting}=1, and in /etc/sysctl.d for the next boot",
    Code.CONNTRACK_FULL: _RAISE_CONNTRACK,
    Code.CONNTRACK_NEARLY_FULL: _RAISE_CONNTRACK,
    Code.EARLIER_NAT: "only the first translation of a connection applies: {command}",
    Code.FOREIGN_DROP: "the owner of that table has to accept these packets: {command}",
    Code.FOREIGN_MASQUERADE: "the endpoint then does not see the client's address: {command}",
    Code.FOREIGN_MAY_DROP: (
        "it depends on properties of the packet that are not known here: {command}, or follow a packet with "
        "`pointsman trace`"
    ),
    Code.FORWARDING_OFF: "sysctl -w {setting}=1, and in /etc/sysctl.d for the next boot; find out what set it to 0",
    Code.INTERFACE_NOT_FORWARDING: (
        "if clients or endpoints are there: sysctl -w net.ipv4.conf.{interface}.forwarding=1"
    ),
    Code.NO_ROUTE: (
        "the network plugin makes the routes to pods: is it running here, and does it know that node? "
        "ip route get {address}"
    ),
    Code.NOT_TRACKED: "untracked packets are not translated: {command}",
    Code.PODS_NOT_DETECTED: _DETECT_PODS,
    Code.POD_RANGE_NOT_DETECTED: _DETECT_PODS,
    Code.REVERSE_PATH_DROPS: "correct the routes, or sysctl -w net.ipv4.conf.{interface}.rp_filter=2 (loose)",
    Code.STRICT_REVERSE_PATH: "use the node's address on that interface, or set rp_filter to 2 (loose)",
    Code.ENDPOINT_BLOCKED: "a rule of this host blocks its own packets: see above, or `nft list ruleset`",
    Code.ENDPOINT_REFUSED: "no process listens there: does the pod listen on that port, and not only on localhost?",
    Code.ENDPOINT_SILENT: (
        "packets or replies are lost: a NetworkPolicy, the network plugin, or a pod that does not respond"
    ),
    Code.ENDPOINT_UNREACHABLE: "this node has no route: check the routes and the network plugin",
    Code.FRONTEND_BLOCKED: _TRACE,
    Code.FRONTEND_REFUSED: _TRACE,
    Code.FRONTEND_SILENT: _TRACE,
    Code.FRONTEND_UNREACHABLE: _TRACE,
}
