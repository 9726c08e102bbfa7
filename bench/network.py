"""A control plane and nodes, each in a network namespace of its own, joined by a bridge."""

from __future__ import annotations

from typing import Self

from pointsman.lab.netns import Namespace

SERVER_ADDRESS, SERVER_PORT = "172.31.0.1", 16443
PREFIX_LENGTH = 16


def compute_node_address(number: int) -> str:
    """Of one of some 60,000 nodes, from 1."""
    high, low = divmod(number - 1, 250)
    return f"172.31.{1 + high}.{1 + low}"


def build_node(number: int, address: str = "") -> dict[str, object]:
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": f"n{number}"},
        "status": {"addresses": [{"type": "InternalIP", "address": address or compute_node_address(number)}]},
    }


class Network:
    """The namespace `control` with the bridge, and those of the nodes that were added."""

    def __init__(self) -> None:
        self.control = Namespace()
        self._nodes: dict[int, Namespace] = {}
        self._configure(
            self.control,
            "link set lo up",
            "link add bridge type bridge",
            f"address add {SERVER_ADDRESS}/{PREFIX_LENGTH} dev bridge",
            "link set bridge up",
        )

    @staticmethod
    def _configure(namespace: Namespace, *commands: str) -> None:
        for command in commands:
            namespace.run(["ip", *command.split()])

    def add_node(self, number: int) -> Namespace:
        """Replace the namespace of the node, if it has one, by a new one."""
        self.remove_node(number)
        node = self._nodes[number] = Namespace()
        self._configure(
            self.control,
            f"link add node{number} type veth peer name eth0 netns {node.path}",
            f"link set node{number} master bridge up",
        )
        self._configure(
            node,
            "link set lo up",
            f"address add {compute_node_address(number)}/{PREFIX_LENGTH} dev eth0",
            "link set eth0 up",
            f"route add default via {SERVER_ADDRESS}",
        )
        return node

    def remove_node(self, number: int) -> None:
        node = self._nodes.pop(number, None)
        if node is not None:
            self._configure(self.control, f"link del node{number}")
            node.close()

    def connect(self, number: int, *, connected: bool) -> None:
        self._configure(self.control, f"link set node{number} {'up' if connected else 'down'}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self._nodes):
            self.remove_node(number)
        self.control.close()
