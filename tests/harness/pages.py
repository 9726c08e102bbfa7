"""Pages of lists, decoded as a whole."""

from __future__ import annotations

from pointsman.kube.codec import BadObject, Page, T


def split_page(page: Page[T]) -> tuple[list[T], list[BadObject]]:
    """Return the objects of a page, and those that cannot be decoded."""
    items = list(page.items)
    bad = [item for item in items if isinstance(item, BadObject)]
    return [item for item in items if not isinstance(item, BadObject)], bad
