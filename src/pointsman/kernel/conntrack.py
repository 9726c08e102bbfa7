"""The kernel's connection tracking table: flows by original destination, and their removal by exact identity.

Selection happens in the kernel (by address and port since Linux 5.8, later also by status) and is repeated here,
because older kernels ignore the filter and answer with everything. Deletion names the complete original tuple and the
entry's id, so a flow that was replaced meanwhile is not hit; a filter is never sent with a deletion, because where it
is ignored it would widen it. Flows in conntrack zones other than the default belong to other programs and are not shown.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from pointsman.errors import KernelError, NotSupported
from pointsman.kernel import netlink, tracked_flows
from pointsman.kernel.netlink import Closable, Message, NetlinkSocket, Reply
from pointsman.kernel.tracked_flows import Flow, FlowDecoder, FlowQuery, Sighting, Wanted, encode_selection
from pointsman.model.addresses import Family

_SUBSYSTEM: Final = 1 << 8
_GET, _DELETE = _SUBSYSTEM | 1, _SUBSYSTEM | 2
_DELETES_PER_CHECK: Final = 2000
_NEEDS: Final = "CONFIG_NF_CT_NETLINK (module nf_conntrack_netlink)"
_REFUSED_FILTER: Final = frozenset((errno.EOPNOTSUPP, errno.EINVAL))

Expired = Callable[[], bool]
Select = Callable[[Family, FlowQuery], bytes]
"""Makes the filter a kernel is sent."""
_T = TypeVar("_T", Flow, Sighting)


class FlowsLeft(KernelError):
    """Not every flow could be deleted; `deleted` are gone all the same."""

    def __init__(self, message: str, errno: int = 0, deleted: int = 0) -> None:
        super().__init__(message, errno)
        self.deleted = deleted


class DeadlinePassed(FlowsLeft):
    """There was more in the table than the time allowed for."""

    def __init__(self, message: str, deleted: int = 0) -> None:
        super().__init__(message, errno.ETIMEDOUT, deleted)


class ConntrackTable(Closable):
    """The table of one IP family in this network namespace. Not thread-safe; open one per use."""

    def __init__(
        self,
        family: Family,
        select: Select = encode_selection,
        open_socket: Callable[[int], NetlinkSocket] = NetlinkSocket,
    ) -> None:
        self.family = family
        self.selects = True
        """The kernel has not shown yet that it takes no filter, so that every query walks over the whole table."""
        self._select = select
        self._decoder = FlowDecoder(family)
        self._socket = open_socket(netlink.NETLINK_NETFILTER)

    def close(self) -> None:
        self._socket.close()

    def list_flows(self, query: FlowQuery, wanted: Wanted, expired: Expired = lambda: False) -> list[Flow]:
        """Return flows that match the query and that `wanted` accepts.

        Raises DeadlinePassed when `expired` returns True; this table must not be used again then.
        """
        found: list[Flow] = []
        self._visit(
            query, lambda payload: self._decoder.decode(payload, query, wanted), found.append, expired
        )
        return found

    def visit_flows(
        self, query: FlowQuery, take: Callable[[Sighting], None], expired: Expired = lambda: False
    ) -> None:
        """Hand every flow that matches the query to `take`; raises as `list_flows` does."""
        self._visit(query, lambda payload: self._decoder.sight(payload, query), take, expired)

    def _visit(
        self,
        query: FlowQuery,
        decode: Callable[[bytes], _T | None],
        take: Callable[[_T], object],
        expired: Expired,
    ) -> None:
        """Hand the flows that match to `take`, selected by the kernel where it can, and by `decode` where it cannot."""

        def on_message(payload: bytes) -> None:
            flow = decode(payload)
            if flow is not None:
                take(flow)

        if self.selects:
            try:
                return self._dump(self._select(self.family, query), on_message, expired)
            except KernelError as error:
                if isinstance(error, DeadlinePassed) or error.errno not in _REFUSED_FILTER:
                    raise
                self.selects = False
        try:
            self._dump(b"", on_message, expired)
        except KernelError as error:
            if error.errno == errno.EINVAL:
                raise NotSupported(f"list tracked flows: the kernel needs {_NEEDS}", error.errno) from error
            raise

    def delete(self, flows: Sequence[Flow], expired: Expired = lambda: False) -> int:
        """Remove exactly these flows; return how many were still there.

        Raises FlowsLeft when the kernel rejected any of them; all are tried first. Its `errno` is EBUSY where that is the only one: older
        kernels do not delete a flow that a flowtable carries.
        """
        deleted = 0
        refused: Counter[Reply] = Counter()
        for start in range(0, len(flows), _DELETES_PER_CHECK):
            if expired():
                raise DeadlinePassed(f"{start} of {len(flows)} deletions done in the time allowed", deleted)
            messages = [self._encode_deletion(flow) for flow in flows[start : start + _DELETES_PER_CHECK]]
            for reply in self._socket.request(messages):
                if reply.ok:
                    deleted += 1
                elif reply.errno != errno.ENOENT:
                    refused[reply] += 1
        if refused:
            worst = min(refused, key=lambda reply: reply.errno == errno.EBUSY)
            what = f"delete {refused.total()} of {len(flows)} tracked flows"
            error = netlink.build_kernel_error(worst.errno, what, worst.text, needs=_NEEDS)
            raise FlowsLeft(str(error), worst.errno, deleted)
        return deleted

    def filter_unreplied(self, flows: Sequence[Flow]) -> list[Flow]:
        """Return those of these flows that are still there and on which no packet has come back by now."""
        replies = self._socket.request([self._encode_request(_GET, flow) for flow in flows])
        return [
            flow
            for flow, reply in zip(flows, replies, strict=True)
            if any(self._is_unreplied(flow, answer.payload) for answer in reply.answers)
        ]

    def _is_unreplied(self, flow: Flow, payload: bytes) -> bool:
        query = FlowQuery(flow.protocol, flow.destination, flow.destination_port, unreplied=True)
        return self._decoder.decode(payload, query, lambda *_: True) == flow

    def _encode_request(self, kind: int, flow: Flow, more: bytes = b"") -> Message:
        """Return a request about exactly this flow."""
        named = tracked_flows.encode_original(self.family, flow)
        return Message(kind, 0, tracked_flows.build_header(self.family) + named + more)

    def _encode_deletion(self, flow: Flow) -> Message:
        return self._encode_request(_DELETE, flow, tracked_flows.encode_id(flow))

    def _dump(self, selection: bytes, take: Callable[[bytes], None], expired: Expired) -> None:
        """Stream the answers, so that a large table costs no memory for flows that do not match.

        Flows come and go during a dump, and the kernel marks none as interrupted (NLM_F_DUMP_INTR): while the table is being
        resized, flows may come twice or be missed. Callers who must not miss one look again.
        """
        sequence = self._socket.reserve_sequences()
        flags = netlink.NLM_F_REQUEST | netlink.NLM_F_DUMP
        self._socket.send(
            netlink.build_frame(_GET, flags, sequence, tracked_flows.build_header(self.family) + selection)
        )
        while True:
            if expired():
                raise DeadlinePassed("listing tracked flows took longer than allowed")
            for answer in self._socket.receive():
                if answer.sequence != sequence:
                    continue
                if answer.kind in (netlink.NLMSG_DONE, netlink.NLMSG_ERROR):
                    reply = netlink.parse_reply(answer)
                    if reply.errno:
                        raise netlink.build_kernel_error(
                            reply.errno, "list tracked flows", reply.text, needs=_NEEDS
                        )
                    return
                if selection and not answer.flags & netlink.NLM_F_DUMP_FILTERED:
                    self.selects = False
                take(answer.payload)
