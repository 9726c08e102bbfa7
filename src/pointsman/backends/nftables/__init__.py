"""nftables mode: one table per IP family, balancer chains shared by all services, endpoints as map elements over netlink.

Promise: a change costs elements in proportion to the change, in one transaction; packets meet the old table or the new one.

Invariants:
* A plan compiles to a `Fragment` (`compile`, pure). `Contents` holds the committed fragments; `Change` makes the `Batch` between
  two states and updates `Contents` only after the kernel accepted it (`apply`).
* Text (`text`) and netlink messages (`encode`) are made from the same values and load the same table; a test loads both.
* A slot keeps its endpoint while other endpoints come and go, so that few elements change (`fragment.arrange_slots`).
* All comparisons of the table with the kernel are in `check`, over what `reader` reads.
* Only `table_socket` commits; it also finds the service port behind an object that the kernel rejects. Errors that no object
  causes, such as lack of memory, reject no service port.
* What the kernel must have is tried by `preflight`, with transactions that are never applied.

A change that adds a set, map or base chain must also change the layout number in `schema`, or a running table would be filled
as it is. A change that adds a kind of clause must also teach `expressions` its registers and `preflight` its kernel option; one that adds
a part of keys gives it a row in `fields`, from which text, types, encoding and `typeof` follow.
A change that adds a part to `Fragment` must handle it in `Contents.load` and in `Change`, which a test compares; one that puts
something else into the table must also make `check` compare it.

The ledger of the other modes is not used: it keeps a row for each object, and here one service port has hundreds.
"""
