"""Findings about an object, a Service or a configuration: code, severity, object and parameters.

There is no English here: `pointsman.wording` makes text from codes and parameters. A code is also the reason of an event
and the label of a metric, so its value never changes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import msgspec

FILE = "File"
DOCUMENT = "Document"
"""Kinds of what a source reads and cannot attribute to an object."""

MAX_VALUE_LENGTH = 200
MAX_PER_OBJECT = 20

Value = str | int | tuple[str, ...]


class Severity(enum.StrEnum):
    """How much a finding matters to what it is about."""

    ERROR = "error"
    """It is not used or not served."""
    WARNING = "warning"
    """It is used, but a part of it is left out, or something works differently than requested."""
    NOTICE = "notice"
    """It is used as it is."""


class Code(enum.StrEnum):
    """What was found; the value is a CamelCase word for programs, events and metrics."""

    UNKNOWN = "Unknown"
    """Of a program of another version, which has codes that this one does not."""

    # An object that a source cannot use.
    DUPLICATE = "Duplicate"
    INVALID = "Invalid"
    NOT_ALLOCATED = "NotAllocated"
    UNDECODABLE = "Undecodable"
    UNKNOWN_KIND = "UnknownKind"
    UNREADABLE = "Unreadable"

    # Fields of a Service.
    BAD_ADDRESS = "BadAddress"
    BAD_AFFINITY_TIMEOUT = "BadAffinityTimeout"
    BAD_ANNOTATION = "BadAnnotation"
    BAD_CLUSTER_IP = "BadClusterIP"
    BAD_PORT = "BadPort"
    BAD_PROTOCOL = "BadProtocol"
    BAD_SOURCE_RANGE = "BadSourceRange"
    FORBIDDEN_ADDRESS = "ForbiddenAddress"
    FORBIDDEN_CLUSTER_IP = "ForbiddenClusterIP"
    MORE_PROBLEMS = "MoreProblems"
    SLOW_START_IGNORED = "SlowStartIgnored"
    TOO_MANY_FRONTENDS = "TooManyFrontends"

    # Fields of an EndpointSlice.
    BAD_ENDPOINT_ADDRESS = "BadEndpointAddress"
    BAD_ENDPOINT_PORT = "BadEndpointPort"
    BAD_TRIGGER_TIME = "BadTriggerTime"
    ENDPOINT_WITHOUT_ADDRESS = "EndpointWithoutAddress"
    FORBIDDEN_ENDPOINT_ADDRESS = "ForbiddenEndpointAddress"
    TOO_MANY_ENDPOINT_PORTS = "TooManyEndpointPorts"
    WRONG_FAMILY_ENDPOINT = "WrongFamilyEndpoint"

    # Services that this proxy does not serve, and addresses that it does not.
    EXTERNAL_NAME = "ExternalName"
    HEADLESS = "Headless"
    IP_MODE_PROXY = "IPModeProxy"
    NO_CLUSTER_IP = "NoClusterIP"
    NO_LOAD_BALANCER_ADDRESS = "NoLoadBalancerAddress"
    OTHER_PROXY = "OtherProxy"

    # The plan of a service port.
    ADDRESS_IN_SERVICE_RANGE = "AddressInServiceRange"
    ADDRESS_IS_CLUSTER_IP = "AddressIsClusterIP"
    ADDRESS_NOT_ALLOWED = "AddressNotAllowed"
    CONTESTED_ADDRESS = "ContestedAddress"
    CONTESTED_CLUSTER_IP = "ContestedClusterIP"
    CONTESTED_NODE_PORT = "ContestedNodePort"
    FLOW_TIMEOUT_NOT_POSSIBLE = "FlowTimeoutNotPossible"
    INTERNAL_ERROR = "InternalError"
    KERNEL_REFUSED = "KernelRefused"
    PORT_NOT_HASHED = "PortNotHashed"
    SCHEDULER_NOT_POSSIBLE = "SchedulerNotPossible"
    SLOW_START_NOT_POSSIBLE = "SlowStartNotPossible"
    SOURCE_RANGES_NOT_POSSIBLE = "SourceRangesNotPossible"
    SOURCE_RANGES_OF_OTHER_FAMILY = "SourceRangesOfOtherFamily"
    TOO_MANY_TO_HASH = "TooManyToHash"
    HASH_BUDGET_EXCEEDED = "HashBudgetExceeded"

    # A configuration that does not fit the node.
    NODE_PORTS_EVERYWHERE = "NodePortsEverywhere"
    NODE_PORT_ADDRESSES_UNSET = "NodePortAddressesUnset"
    NO_POD_RANGE = "NoPodRange"
    OTHER_FAMILY_ONLY = "OtherFamilyOnly"
    PRIMARY_FAMILY_NOT_SERVED = "PrimaryFamilyNotServed"

    # A question that leads to no service port.
    AMBIGUOUS = "Ambiguous"
    CLIENT_OF_OTHER_FAMILY = "ClientOfOtherFamily"
    ENDPOINT_NOT_USED = "EndpointNotUsed"
    ENDPOINT_USED = "EndpointUsed"
    FAMILY_NOT_SERVED = "FamilyNotServed"
    ALSO_REQUESTED = "AlsoRequested"
    NODE_ADDRESS = "NodeAddress"
    NO_SERVICE_AT_ADDRESS = "NoServiceAtAddress"
    NO_SUCH_NODE_PORT = "NoSuchNodePort"
    NO_SUCH_POD = "NoSuchPod"
    NO_SUCH_PORT = "NoSuchPort"
    NO_SUCH_SERVICE = "NoSuchService"
    NOT_A_SERVICE_ADDRESS = "NotAServiceAddress"
    NOT_PLANNED = "NotPlanned"
    NOT_STARTED = "NotStarted"
    SYNC_FAILING = "SyncFailing"
    WRONG_ENDPOINT_PORT = "WrongEndpointPort"
    WRONG_PORT = "WrongPort"

    # A service port, its rules and its endpoints.
    EMPTY_ENDPOINT_SLICES = "EmptyEndpointSlices"
    EXTERNAL_IPS_IGNORED = "ExternalIPsIgnored"
    HEALTH_CHECK_FAILS = "HealthCheckFails"
    HINTS_IGNORED = "HintsIgnored"
    KERNEL_DIFFERS = "KernelDiffers"
    NODE_NAME_MISMATCH = "NodeNameMismatch"
    NODE_PORT_ADDRESSES = "NodePortAddresses"
    NO_ENDPOINT_SLICES = "NoEndpointSlices"
    NO_NODE_PORT_ADDRESS = "NoNodePortAddress"
    NO_LOCAL_ENDPOINT = "NoLocalEndpoint"
    NO_READY_ENDPOINTS = "NoReadyEndpoints"
    NOT_SYNCED_YET = "NotSyncedYet"
    PORT_NAME_MISMATCH = "PortNameMismatch"
    RESET_GONE_NEEDS_LOOSE_TRACKING = "ResetGoneNeedsLooseTracking"
    SOURCE_RANGES = "SourceRanges"

    # The host: settings, routes, and rules of other programs.
    BRIDGE_BYPASSES_RULES = "BridgeBypassesRules"
    CONNTRACK_FULL = "ConntrackFull"
    CONNTRACK_NEARLY_FULL = "ConntrackNearlyFull"
    EARLIER_NAT = "EarlierNat"
    FOREIGN_DROP = "ForeignDrop"
    FOREIGN_MASQUERADE = "ForeignMasquerade"
    FOREIGN_MAY_DROP = "ForeignMayDrop"
    FORWARDING_OFF = "ForwardingOff"
    INTERFACE_NOT_FORWARDING = "InterfaceNotForwarding"
    NO_ROUTE = "NoRoute"
    NOT_TRACKED = "NotTracked"
    PODS_NOT_DETECTED = "PodsNotDetected"
    POD_RANGE_NOT_DETECTED = "PodRangeNotDetected"
    REVERSE_PATH_DROPS = "ReversePathDrops"
    STRICT_REVERSE_PATH = "StrictReversePath"

    # Connections made by `explain --probe`.
    ENDPOINT_BLOCKED = "EndpointBlocked"
    ENDPOINT_REFUSED = "EndpointRefused"
    ENDPOINT_SILENT = "EndpointSilent"
    ENDPOINT_UNREACHABLE = "EndpointUnreachable"
    FRONTEND_BLOCKED = "FrontendBlocked"
    FRONTEND_REFUSED = "FrontendRefused"
    FRONTEND_SILENT = "FrontendSilent"
    FRONTEND_UNREACHABLE = "FrontendUnreachable"

    # Another proxy mode, by `check --to`.
    MIGRATE_CHAINS = "MigrateChains"
    MIGRATE_EXCLUDE_CIDRS = "MigrateExcludeCIDRs"
    MIGRATE_EXTERNAL_IPS = "MigrateExternalIPs"
    MIGRATE_IPVS_ADDRESSES = "MigrateIPVSAddresses"
    MIGRATE_KERNEL = "MigrateKernel"
    MIGRATE_LOOPBACK = "MigrateLoopback"
    MIGRATE_MIN_SYNC_PERIOD = "MigrateMinSyncPeriod"
    MIGRATE_NODE_PORT_ADDRESSES = "MigrateNodePortAddresses"
    MIGRATE_NO_SCHEDULER = "MigrateNoScheduler"
    MIGRATE_SCHEDULER = "MigrateScheduler"
    MIGRATE_SOURCE_RANGES = "MigrateSourceRanges"
    MIGRATE_STRICT_ARP = "MigrateStrictARP"
    MIGRATE_TIMEOUT = "MigrateTimeout"

    @classmethod
    def _missing_(cls, _value: object) -> Code:
        return cls.UNKNOWN


CONFLICTS = frozenset(
    (
        Code.ADDRESS_IS_CLUSTER_IP,
        Code.CONTESTED_ADDRESS,
        Code.CONTESTED_CLUSTER_IP,
        Code.CONTESTED_NODE_PORT,
    )
)
"""Another service port holds what this one requests; the parameter `holder` names it."""


class ObjectReference(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a finding is about."""

    kind: str
    """Service, EndpointSlice, Node or ServiceCIDR; `File` or `Document` when no object can be named."""
    key: str = ""
    """`namespace/name`; the path of a file; empty when unknown."""
    port: str = ""
    """The name of the port, where it is about one service port."""
    place: str = ""
    """The file, and the part of it, that holds the object; empty for an object from an API server."""

    @property
    def name(self) -> str:
        """The key, with the port as in the name of a service port."""
        return f"{self.key}:{self.port}" if self.port else self.key


NO_OBJECT = ObjectReference("")
_NO_PARAMETERS: Mapping[str, Value] = {}


class Finding(msgspec.Struct, frozen=True, gc=False):
    """One thing found out about an object, a Service or a configuration."""

    code: Code
    severity: Severity = Severity.WARNING
    object: ObjectReference = NO_OBJECT
    """Filled in where the finding leaves the function that made it."""
    parameters: Mapping[str, Value] = _NO_PARAMETERS
    """What the text about this code needs."""
    message: str = ""
    """What is the case, in English. Like the remedy made by `wording.describe` for people; empty inside the program."""
    remedy: str = ""
    """What to do about it."""

    def __hash__(self) -> int:
        return hash((self.code, self.object, frozenset(self.parameters.items())))

    def about(self, reference: ObjectReference) -> Finding:
        return msgspec.structs.replace(self, object=reference)

    @property
    def is_error(self) -> bool:
        return self.severity is Severity.ERROR


def clip(text: str, length: int = MAX_VALUE_LENGTH) -> str:
    """Limit a value from an object: it ends up in events, logs and metrics."""
    return text if len(text) <= length else f"{text[:length]}..."


def build_bad_annotation(annotation: str, value: str, expected: str, used: str = "") -> Finding:
    """Return the finding for a value that counts as another one or, by default, as not given."""
    parameters = {"annotation": annotation, "value": clip(value), "expected": expected}
    if used:
        parameters["used"] = used
    return Finding(Code.BAD_ANNOTATION, parameters=parameters)


def limit_findings(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Truncate the findings about one object; the last one counts those that were left out."""
    more = len(findings) - MAX_PER_OBJECT
    if more <= 0:
        return findings
    return [*findings[:MAX_PER_OBJECT], Finding(Code.MORE_PROBLEMS, parameters={"count": more})]
