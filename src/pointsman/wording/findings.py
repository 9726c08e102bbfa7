"""The text of findings: what is the case, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pointsman.model.findings import DOCUMENT, FILE, Code, Finding, Value
from pointsman.text import join_some
from pointsman.wording.explanations import MESSAGES, REMEDIES, Template, Values
from pointsman.wording.outcomes import render_client

_DETAIL = "{detail}"
_SERVED_BY = "{frontend} is served by {holder}"


def _render_bad_annotation(values: Values) -> str:
    effect = f"read as {values['used']!r}" if "used" in values else "ignored"
    return (
        f"annotation {values['annotation']}: {values['value']!r} is {effect}; expected {values['expected']}"
    )


_MESSAGES: Mapping[Code, Template] = {
    **MESSAGES,
    Code.UNKNOWN: "reported by a proxy of another version",
    # An object that a source cannot use.
    Code.DUPLICATE: _DETAIL,
    Code.INVALID: _DETAIL,
    Code.NOT_ALLOCATED: _DETAIL,
    Code.UNDECODABLE: _DETAIL,
    Code.UNKNOWN_KIND: _DETAIL,
    Code.UNREADABLE: _DETAIL,
    # Fields of a Service.
    Code.BAD_ADDRESS: "{field}: {value!r} is not an IP address",
    Code.BAD_AFFINITY_TIMEOUT: "sessionAffinityConfig.clientIP.timeoutSeconds {value}: {used} is used instead",
    Code.BAD_ANNOTATION: _render_bad_annotation,
    Code.BAD_CLUSTER_IP: "clusterIP {value!r} is not an IP address",
    Code.BAD_PORT: "{field}: port numbers must be within 1..65535",
    Code.BAD_PROTOCOL: "ports[{port!r}].protocol {value!r}: use TCP, UDP or SCTP",
    Code.BAD_SOURCE_RANGE: "loadBalancerSourceRanges: {value!r} is not a CIDR",
    Code.FORBIDDEN_ADDRESS: "{field}: {value!r} is a {reason} address",
    Code.FORBIDDEN_CLUSTER_IP: "clusterIP {value!r} is a {reason} address",
    Code.MORE_PROBLEMS: "{count} more problems in this object",
    Code.SLOW_START_IGNORED: "annotation {annotation} has no effect with {scheduler}: all nodes must choose the same endpoint",
    Code.TOO_MANY_FRONTENDS: "only the first {limit} of {addresses} load-balancer and external IPs are served: there are {ports} ports at each",
    # Fields of an EndpointSlice.
    Code.BAD_ENDPOINT_ADDRESS: "endpoint address {value!r} is not an IP address",
    Code.BAD_ENDPOINT_PORT: "port {port!r}: invalid {field} {value!r}",
    Code.BAD_TRIGGER_TIME: "annotation {annotation} is not a time: {value!r}",
    Code.ENDPOINT_WITHOUT_ADDRESS: "an endpoint has no address",
    Code.FORBIDDEN_ENDPOINT_ADDRESS: "endpoint address {value!r} is {reason}",
    Code.TOO_MANY_ENDPOINT_PORTS: "port {port!r} and those after it are skipped: {endpoints} endpoints exceed {limit} ports in all",
    Code.WRONG_FAMILY_ENDPOINT: "endpoint address {value!r} is not {family}",
    # Services that this proxy does not serve, and addresses that it does not.
    Code.EXTERNAL_NAME: "type is ExternalName",
    Code.HEADLESS: "headless (clusterIP None)",
    Code.IP_MODE_PROXY: "{address} has ipMode {ipMode}: not served on nodes",
    Code.NO_CLUSTER_IP: "no clusterIP yet",
    Code.NO_LOAD_BALANCER_ADDRESS: "status.loadBalancer.ingress has no IP address",
    Code.OTHER_PROXY: "its label names another service proxy",
    # Another proxy mode.
    Code.MIGRATE_CHAINS: "chains named KUBE-... disappear from the nat and filter tables of iptables",
    Code.MIGRATE_EXCLUDE_CIDRS: "ipvs.excludeCIDRs ({cidrs}) only protects virtual servers from clean-up: none are made",
    Code.MIGRATE_EXTERNAL_IPS: "external IPs of {services}: such addresses are restricted by Kubernetes from 1.40 on",
    Code.MIGRATE_IPVS_ADDRESSES: (
        "service addresses leave the device kube-ipvs0: they no longer answer ping, and unused ports are rejected"
    ),
    Code.MIGRATE_KERNEL: "kernel {kernel} is too old: nftables mode needs Linux {oldest}",
    Code.MIGRATE_LOOPBACK: "node ports of {services} no longer answer at 127.0.0.1",
    Code.MIGRATE_MIN_SYNC_PERIOD: "minSyncPeriod {seconds} s is kept",
    Code.MIGRATE_NODE_PORT_ADDRESSES: (
        "node ports of {services} would answer only at the node's primary address; the converted "
        "configuration names all addresses, as before"
    ),
    Code.MIGRATE_NO_SCHEDULER: "scheduler {scheduler} ({place}) has no equivalent: connections go to a random endpoint",
    Code.MIGRATE_SCHEDULER: "scheduler {scheduler} ({place}) is {equivalent} in nftables mode",
    Code.MIGRATE_SOURCE_RANGES: (
        "the annotation {annotation} of {services} takes effect at node ports and external IPs"
    ),
    Code.MIGRATE_STRICT_ARP: "ipvs.strictARP is not needed: no service address is on an interface",
    Code.MIGRATE_TIMEOUT: "{field} has no effect: connections are tracked by netfilter alone",
    # A configuration that does not fit the node.
    Code.NODE_PORTS_EVERYWHERE: (
        "the cluster seems to be {cluster}, but nodePortAddresses has no {family} range: node ports are served at all "
        "local {family} addresses"
    ),
    Code.NODE_PORT_ADDRESSES_UNSET: (
        "nodePortAddresses is unset: node ports are served at all local addresses; consider "
        "--nodeport-addresses=primary"
    ),
    Code.NO_POD_RANGE: (
        "detectLocalMode is NodeCIDR and the Node {node} has no spec.podCIDRs: let the controller manager allocate "
        "ranges (--allocate-node-cidrs), or use another detectLocalMode"
    ),
    Code.OTHER_FAMILY_ONLY: "the cluster is {cluster}, but {field} is {family} only",
    Code.PRIMARY_FAMILY_NOT_SERVED: (
        "this node's first address is {family}, which this machine cannot serve: enable it in the kernel, or put the "
        "other family first in the Node's addresses or in bindAddress"
    ),
    # The plan of a service port.
    Code.ADDRESS_IN_SERVICE_RANGE: "{address} is in the service range: it is lost as soon as a Service gets it as its cluster IP",
    Code.ADDRESS_IS_CLUSTER_IP: "{address} is the cluster IP of {holder}",
    Code.ADDRESS_NOT_ALLOWED: "{address} is outside --external-ip-allow-cidrs",
    Code.CONTESTED_ADDRESS: _SERVED_BY,
    Code.CONTESTED_CLUSTER_IP: _SERVED_BY,
    Code.CONTESTED_NODE_PORT: "node port {nodePort} is served by {holder}",
    Code.FLOW_TIMEOUT_NOT_POSSIBLE: "annotation {annotation}: not available in this proxy mode; its flows expire as others do",
    Code.INTERNAL_ERROR: "cannot be planned: {error}",
    Code.KERNEL_REFUSED: "the kernel rejected its rules: {reason}",
    Code.PORT_NOT_HASHED: "source port excluded from the hash to honour sessionAffinity",
    Code.SCHEDULER_NOT_POSSIBLE: "annotation {annotation}: {scheduler} is not available in this proxy mode; {used} is used",
    Code.SLOW_START_NOT_POSSIBLE: "annotation {annotation}: not available in this proxy mode; new endpoints get their full share at once",
    Code.SOURCE_RANGES_NOT_POSSIBLE: (
        "annotation {annotation}: not available in this proxy mode; loadBalancerSourceRanges apply to "
        "load balancer addresses only"
    ),
    Code.SOURCE_RANGES_OF_OTHER_FAMILY: "loadBalancerSourceRanges have no {family} range: all {family} clients are admitted",
    Code.TOO_MANY_TO_HASH: (
        "a Service with this many ports and addresses is hashed over at most {limit} endpoints; "
        "{used} is used instead of {scheduler}"
    ),
    Code.HASH_BUDGET_EXCEEDED: (
        "the hash tables of older Services use up the memory that this node has for large ones; "
        "this Service gets at most {limit} slots"
    ),
}


_OTHER_ADDRESS = "choose an address outside the service range"
_OTHER_MODE = "remove the annotation, or use a mode that supports it: docs/balancing.md"
_ONE_SERVICE = (
    "one address, protocol and port can serve one Service only: the older one keeps it, of two in manifests the one that was "
    "added first; give one of them another"
)
_CORRECT = "correct the object; the rest of it is used"

_REMEDIES: Mapping[Code, Template] = {
    **REMEDIES,
    Code.ADDRESS_IN_SERVICE_RANGE: _OTHER_ADDRESS,
    Code.ADDRESS_IS_CLUSTER_IP: _OTHER_ADDRESS,
    Code.ADDRESS_NOT_ALLOWED: "add its range to --external-ip-allow-cidrs if Services may use it",
    Code.CONTESTED_ADDRESS: _ONE_SERVICE,
    Code.CONTESTED_CLUSTER_IP: _ONE_SERVICE,
    Code.CONTESTED_NODE_PORT: _ONE_SERVICE,
    Code.EXTERNAL_NAME: "its name is a DNS alias; connections never pass through this proxy",
    Code.FLOW_TIMEOUT_NOT_POSSIBLE: "remove the annotation, or use nftables mode: docs/conntrack.md",
    Code.HEADLESS: "clients use the pod addresses that DNS returns for its name; there is no cluster IP",
    Code.IP_MODE_PROXY: "packets to it go to the load balancer, as the Service's status requests; set ipMode VIP to serve it on nodes",
    Code.MIGRATE_CHAINS: "change firewalls and scripts that refer to them",
    Code.MIGRATE_EXTERNAL_IPS: "use load balancer addresses, or list the allowed ranges in --external-ip-allow-cidrs",
    Code.MIGRATE_IPVS_ADDRESSES: "test service addresses with connections instead of ping",
    Code.MIGRATE_KERNEL: "update the kernel, or stay in the present mode",
    Code.MIGRATE_LOOPBACK: "use the node's address, or switch on the feature gate {gate} and add localhost to nodePortAddresses (TCP only)",
    Code.MIGRATE_MIN_SYNC_PERIOD: "remove it, and the pause follows from what a sync costs",
    Code.MIGRATE_NODE_PORT_ADDRESSES: "use nodePortAddresses [primary] if nothing needs the other addresses",
    Code.MIGRATE_NO_SCHEDULER: "choose one of pointsman.dev/scheduler: weighted, least-connections, source-hash or source-port-hash",
    Code.MIGRATE_SCHEDULER: "set the annotation pointsman.dev/scheduler: {equivalent}, or --default-scheduler={equivalent} for all",
    Code.MIGRATE_SOURCE_RANGES: "check that the ranges admit all clients",
    Code.MIGRATE_STRICT_ARP: "MetalLB and keepalived work without it",
    Code.MIGRATE_TIMEOUT: "set {instead}",
    Code.NO_CLUSTER_IP: "the API server allocates a cluster IP when the Service is created; is the object complete?",
    Code.NO_LOAD_BALANCER_ADDRESS: "the cloud controller (or MetalLB) has not assigned one yet; look at its log",
    Code.OTHER_PROXY: "remove the label service.kubernetes.io/service-proxy-name to have it served here",
    Code.PORT_NOT_HASHED: "request source-hash, or no session affinity",
    Code.SCHEDULER_NOT_POSSIBLE: _OTHER_MODE,
    Code.SLOW_START_NOT_POSSIBLE: _OTHER_MODE,
    Code.SOURCE_RANGES_NOT_POSSIBLE: "use nftables or iptables mode, or protect node ports and external IPs by other means",
    Code.SOURCE_RANGES_OF_OTHER_FAMILY: "give ranges of both families, or 0.0.0.0/0 or ::/0 to admit every client",
    Code.TOO_MANY_TO_HASH: (
        "split the Service, or use sessionAffinity ClientIP; docs/balancing.md has the cost of a hash, and zone hints "
        "(trafficDistribution) leave each node fewer endpoints"
    ),
    Code.HASH_BUDGET_EXCEEDED: "reduce pointsman.dev/hash-slots of this Service or of older ones: docs/balancing.md",
    **dict.fromkeys(
        (
            Code.BAD_ADDRESS,
            Code.BAD_AFFINITY_TIMEOUT,
            Code.BAD_ANNOTATION,
            Code.BAD_CLUSTER_IP,
            Code.BAD_ENDPOINT_ADDRESS,
            Code.BAD_ENDPOINT_PORT,
            Code.BAD_PORT,
            Code.BAD_PROTOCOL,
            Code.BAD_SOURCE_RANGE,
            Code.BAD_TRIGGER_TIME,
            Code.ENDPOINT_WITHOUT_ADDRESS,
            Code.FORBIDDEN_ADDRESS,
            Code.FORBIDDEN_ENDPOINT_ADDRESS,
            Code.MORE_PROBLEMS,
            Code.SLOW_START_IGNORED,
            Code.TOO_MANY_ENDPOINT_PORTS,
            Code.TOO_MANY_FRONTENDS,
            Code.WRONG_FAMILY_ENDPOINT,
        ),
        _CORRECT,
    ),
}


def describe(finding: Finding) -> Finding:
    """Return the finding with message and remedy; one that has a message, from another program, keeps it."""
    if finding.message:
        return finding
    return msgspec.structs.replace(
        finding, message=render_message(finding), remedy=_fill(_REMEDIES.get(finding.code, ""), finding)
    )


def render_message(finding: Finding) -> str:
    """Return what is the case, without naming the object."""
    return finding.message or _fill(_MESSAGES[finding.code], finding)


def render_finding(finding: Finding) -> str:
    """Return where it is, what it is about, and what is the case."""
    reference = finding.object
    subject = f"{reference.kind} {reference.name or '(unnamed)'}"
    if reference.kind in ("", FILE, DOCUMENT):
        subject = ""
    return ": ".join(part for part in (reference.place, subject, render_message(finding)) if part)


def _fill(template: Template, finding: Finding) -> str:
    if isinstance(template, str) and "{" not in template:
        return template
    values = {name: _render_value(name, value) for name, value in finding.parameters.items()}
    return template.format_map(values) if isinstance(template, str) else template(values)


def _render_value(name: str, value: Value) -> str:
    if name == "client":
        return render_client(str(value))
    if isinstance(value, tuple):
        return join_some(map(render_client, value) if name == "clients" else value)
    return str(value)
