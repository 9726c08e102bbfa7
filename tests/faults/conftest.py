"""The fixtures of the process tests serve the fault tests too."""

from tests.process.conftest import api, node, process

__all__ = ["api", "node", "process"]
