"""nft syntax for sets, elements and whole tables: what `render` prints and operators compare with a listing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pointsman.backends.nftables.clauses import Rule, format_key_fields
from pointsman.backends.nftables.fields import FamilyTraits, Field, unpack_slot_number
from pointsman.backends.nftables.fragment import Element
from pointsman.backends.nftables.schema import (
    AFFINITY_SIZE,
    ENDPOINT_FIELDS,
    TABLE,
    Chain,
    Data,
    FlowTimeout,
    Hook,
    HookPoint,
    SetSpec,
)
from pointsman.kernel import nf_tables as nf
from pointsman.model.addresses import Cidr, address_text

_PROTOCOLS = {6: "tcp", 17: "udp", 132: "sctp"}


def format_key(key: bytes, spec: SetSpec, traits: FamilyTraits) -> str:
    """Return `10.96.0.1 . tcp . 443`, or `*` for the catch-all."""
    return " . ".join(_format_fields(key, spec.key, traits)) if key else "*"


def _format_fields(key: bytes, fields: Sequence[Field], traits: FamilyTraits) -> Iterator[str]:
    offset = 0
    for field in fields:
        length = traits.fields[field].length
        value = key[offset : offset + length]
        offset += (length + 3) & ~3
        if field is Field.PROTOCOL:
            yield _PROTOCOLS.get(value[0], str(value[0]))
        elif field is Field.PORT:
            yield str(int.from_bytes(value, "big"))
        elif field is Field.SLOT:
            yield str(unpack_slot_number(value))
        else:
            yield address_text(value)


def format_endpoint(data: bytes, traits: FamilyTraits) -> str:
    """Return `10.244.1.2 . 8080`."""
    return " . ".join(_format_fields(data, ENDPOINT_FIELDS, traits))


def format_range(element: Element, spec: SetSpec, traits: FamilyTraits) -> str:
    """Return the key of an interval element: its last field is a range or prefix."""
    *exact, first = _format_fields(element.key, spec.key, traits)
    length = traits.address_length
    start, end = element.key[-length:], element.key_end[-length:]
    prefix = _find_prefix(start, end)
    if prefix is None:
        spelled = f"{first}-{address_text(end)}"
    elif prefix.prefix == length * 8:
        spelled = first
    else:
        spelled = str(prefix)
    return " . ".join((*exact, spelled))


def _find_prefix(start: bytes, end: bytes) -> Cidr | None:
    """Return the range as a prefix; None when it is not one."""
    first, last, bits = int.from_bytes(start, "big"), int.from_bytes(end, "big"), len(start) * 8
    size = last - first + 1
    if size & (size - 1) or first % size:
        return None
    return Cidr(start, bits - size.bit_length() + 1)


def format_element(element: Element, label: str, spec: SetSpec, traits: FamilyTraits) -> str:
    """Return one element as it stands between braces."""
    formatted = (
        format_range(element, spec, traits) if element.key_end else format_key(element.key, spec, traits)
    )
    if label:
        formatted += f' comment "{label}"'
    return formatted if element.chain is None else f"{formatted} : {format_verdict(element.chain)}"


def format_verdict(chain: str) -> str:
    return f"goto {chain}" if chain else "drop"


def format_slot(key: bytes, data: bytes, spec: SetSpec, traits: FamilyTraits) -> str:
    return f"{format_key(key, spec, traits)} : {format_endpoint(data, traits)}"


def format_set_keyword(spec: SetSpec) -> str:
    return "set" if spec.data is Data.NOTHING else "map"


def format_set_statements(spec: SetSpec, traits: FamilyTraits) -> list[str]:
    """Return the lines of a set definition."""
    if spec.typeof:
        data = f" : {format_key_fields(ENDPOINT_FIELDS, traits)}"
        lines = [f"typeof {format_key_fields(spec.key, traits)}{data}"]
    else:
        types = (field.type_name for field in traits.find_fields(spec.key))
        data = " : verdict" if spec.data is Data.VERDICT else ""
        lines = [f"type {' . '.join(types)}{data}"]
    if spec.dynamic:
        lines += [f"size {AFFINITY_SIZE}", "flags dynamic,timeout"]
    if spec.interval:
        lines.append("flags interval")
    if spec.counter:
        lines.append("counter")
    if spec.comment:
        lines.append(f'comment "{spec.comment}"')
    return lines


def format_timeout_statements(timeout: FlowTimeout, traits: FamilyTraits) -> list[str]:
    """Return the lines of the definition of a timeout."""
    policy = ", ".join(f"{state} : {seconds}" for state, seconds in timeout.policy.items())
    protocol = f"protocol {timeout.protocol.lower}"
    return [protocol, f"l3proto {traits.keyword}", f"policy = {{ {policy} }}"]


def format_chain_statements(chain: Chain) -> list[str]:
    """Return the lines of a chain definition, without its rules."""
    lines = [f'comment "{chain.comment}"'] if chain.comment else []
    return lines if chain.hook is None else [*lines, f"{format_hook(chain.hook)};"]


_POLICIES = {nf.NF_ACCEPT: "accept", nf.NF_DROP: "drop"}
_POINTS = {point.value: point.name.lower() for point in HookPoint}


def format_hook(hook: Hook | None) -> str:
    if hook is None:
        return "no hook"
    where, policy = _POINTS.get(hook.point, str(hook.point)), _POLICIES.get(hook.policy, str(hook.policy))
    return f"type {hook.kind} hook {where} priority {hook.priority}; policy {policy}"


def format_rule(rule: Rule) -> str:
    return f'{rule.text} comment "{rule.comment}"' if rule.comment else rule.text


def render_table(
    traits: FamilyTraits,
    comment: str,
    timeouts: Iterable[FlowTimeout],
    sets: Iterable[SetSpec],
    elements: Mapping[str, Sequence[str]],
    chains: Sequence[Chain],
) -> str:
    """Return a whole table; the elements of each set are printed in sorted order, so equal tables print equally."""
    lines = [f"table {traits.keyword} {TABLE} {{", f'\tcomment "{comment}"']
    for timeout in timeouts:
        lines += ["", f"\tct timeout {timeout.name} {{"]
        lines += [f"\t\t{line}" for line in format_timeout_statements(timeout, traits)]
        lines.append("\t}")
    for spec in sets:
        lines += ["", f"\t{format_set_keyword(spec)} {spec.name} {{"]
        lines += [f"\t\t{line}" for line in format_set_statements(spec, traits)]
        members = elements.get(spec.name)
        if members:
            lines.append("\t\telements = {")
            lines += [f"\t\t\t{member}," for member in members]
            lines.append("\t\t}")
        lines.append("\t}")
    for chain in chains:
        lines += ["", f"\tchain {chain.name} {{"]
        lines += [f"\t\t{line}" for line in format_chain_statements(chain)]
        lines += [f"\t\t{format_rule(rule)}" for rule in chain.rules]
        lines.append("\t}")
    lines.append("}")
    return "\n".join(lines) + "\n"
