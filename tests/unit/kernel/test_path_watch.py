"""A change is noticed however it is made, and nothing is reported when nothing changed."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from pointsman.kernel import path_watch
from pointsman.kernel.path_watch import Inotify, watch_path


async def _noticed(
    path: Path,
    change: Callable[[], object],
    *,
    poll: float = 60.0,
    within: float = 10.0,
    open_inotify: Callable[[], Inotify] = Inotify,
) -> bool:
    changes = watch_path(path, debounce=0.01, poll=poll, open_inotify=open_inotify)
    first: asyncio.Future[None] = asyncio.ensure_future(_next(changes.__anext__()))
    await asyncio.sleep(0.02)
    change()
    done, _ = await asyncio.wait([first], timeout=within)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await changes.aclose()
    return bool(done)


async def _next(step: Awaitable[None]) -> None:
    await step


async def test_write_in_place_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("a")
    assert await _noticed(file, lambda: file.write_text("b"))


async def test_atomic_rename_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("a")
    other = tmp_path / "other"
    other.write_text("b")
    assert await _noticed(file, lambda: other.rename(file))


async def test_creation_after_absence_is_noticed_even_of_the_directory(tmp_path: Path) -> None:
    file = tmp_path / "sub" / "config.yaml"

    def create() -> None:
        file.parent.mkdir()
        file.write_text("a")

    assert await _noticed(file, create)


async def test_deletion_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("a")
    assert await _noticed(file, file.unlink)


async def test_configmap_symlink_swap_is_noticed(tmp_path: Path) -> None:
    for version in ("..1", "..2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "config.yaml").write_text(version)
    (tmp_path / "..data").symlink_to("..1")
    file = tmp_path / "config.yaml"
    file.symlink_to("..data/config.yaml")

    def swap() -> None:
        (tmp_path / "..data_tmp").symlink_to("..2")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    assert await _noticed(file, swap)
    assert file.read_text() == "..2"


async def test_write_to_the_target_of_a_symlink_elsewhere_is_noticed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere" / "real.yaml"
    target.parent.mkdir()
    target.write_text("a")
    link = tmp_path / "config.yaml"
    link.symlink_to(target)
    assert await _noticed(link, lambda: target.write_text("b"))


async def test_new_file_in_a_watched_directory_is_noticed(tmp_path: Path) -> None:
    assert await _noticed(tmp_path, lambda: (tmp_path / "service.yaml").write_text("a"))


async def test_sibling_files_are_not_reported(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("a")
    assert not await _noticed(file, lambda: (tmp_path / "sibling").write_text("b"), within=0.2)


async def test_change_between_the_call_and_the_first_iteration_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("a")

    changes = watch_path(file, debounce=0.01, poll=60.0)
    file.write_text("longer")
    async with asyncio.timeout(10):
        await changes.__anext__()
    await changes.aclose()


async def test_second_change_through_a_new_symlink_target_is_noticed_too(tmp_path: Path) -> None:
    for version in ("..1", "..2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "config.yaml").write_text(version)
    (tmp_path / "..data").symlink_to("..1")
    file = tmp_path / "config.yaml"
    file.symlink_to("..data/config.yaml")

    changes = watch_path(file, debounce=0.01, poll=60.0)
    (tmp_path / "..data").unlink()
    (tmp_path / "..data").symlink_to("..2")
    async with asyncio.timeout(10):
        await changes.__anext__()
        (tmp_path / "..2" / "config.yaml").write_text("changed")
        await changes.__anext__()
    await changes.aclose()


async def test_without_inotify_polling_notices(tmp_path: Path) -> None:
    def refuse() -> Inotify:
        raise OSError(24, "Too many open files")

    file = tmp_path / "config.yaml"
    file.write_text("a")
    assert await _noticed(file, lambda: file.write_text("bb"), poll=0.05, open_inotify=refuse)


async def test_closing_releases_the_descriptor(tmp_path: Path) -> None:
    def descriptors() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    before = descriptors()
    changes = watch_path(tmp_path, debounce=0.01, poll=0.05)
    (tmp_path / "x").write_text("x")
    await changes.__anext__()
    await changes.aclose()
    assert descriptors() == before


def test_link_loop_and_relative_links_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    entries = path_watch.find_path_entries(tmp_path / "a")
    assert entries[str(tmp_path)] == frozenset({"a", "b"})
    assert path_watch.compute_fingerprint(tmp_path / "a") is None
