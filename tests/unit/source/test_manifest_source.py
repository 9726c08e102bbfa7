"""Files on disk, changed in all the ways files are changed, as a sequence of events."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.harness.kube_objects import endpoint_slice, node, service

from pointsman.model.findings import Finding
from pointsman.model.objects import Delete, Node, Service, SourceEvent, Synced, Upsert
from pointsman.source.manifest_files import ManifestFiles, load_objects
from pointsman.source.manifests import ManifestSource
from pointsman.wording.findings import render_finding

GOLDEN = Path(__file__).parents[2] / "golden" / "data"


def write(path: Path, *documents: dict[str, Any]) -> None:
    path.write_text("\n---\n".join(json.dumps(document) for document in documents), encoding="utf-8")


class Reader:
    """A manifest source under test, with everything it reports."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.bad: list[Finding] = []
        self.source = ManifestSource(path, on_finding=self.bad.append, debounce=0.02, poll=0.5, **options)
        self.stream: AsyncGenerator[SourceEvent, None] = self.source.events()

    async def next(self) -> str:
        async with asyncio.timeout(20):
            event = await anext(self.stream)
        match event:
            case Upsert(object=item):
                return f"+{item.metadata.key}"
            case Delete(key=key):
                return f"-{key}"
            case Synced(kind=kind):
                return f"synced {kind.__name__}"

    async def until_synced(self) -> list[str]:
        seen: list[str] = []
        while sum(entry.startswith("synced") for entry in seen) < 4:
            seen.append(await self.next())
        return [entry for entry in seen if not entry.startswith("synced")]

    async def reported(self, text: str) -> None:
        async with asyncio.timeout(20):
            while not any(text in render_finding(finding) for finding in self.bad):  # noqa: ASYNC110  a callback sets it
                await asyncio.sleep(0.01)


@asynccontextmanager
async def reading(path: Path, **options: Any) -> AsyncIterator[Reader]:
    reader = Reader(path, **options)
    async with aclosing(reader.stream):
        yield reader


async def test_directory_is_delivered_synced_and_followed(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", service("a"), endpoint_slice("a-1", "10.1.0.1", service_name="a"))
    write(tmp_path / "b.json", service("b"))
    async with reading(tmp_path) as reader:
        assert await reader.until_synced() == ["+default/a-1", "+default/a", "+default/b"]
        write(tmp_path / "c.yml", service("c"))
        assert await reader.next() == "+default/c"
        (tmp_path / "a.yaml").unlink()
        assert [await reader.next(), await reader.next()] == ["-default/a", "-default/a-1"]
        assert reader.bad == []
        assert reader.source.statuses["manifests"].objects == 2


async def test_a_service_appears_after_its_endpoints_and_goes_before_them(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    write(path, service("a"))
    async with reading(path) as reader:
        await reader.until_synced()
        write(path, service("b"), endpoint_slice("b-1", "10.1.0.1", service_name="b"), service("a"))
        assert [await reader.next(), await reader.next()] == ["+default/b-1", "+default/b"]
        write(path, endpoint_slice("c-1", "10.1.0.1", service_name="c"), service("a"))
        assert [await reader.next() for _ in range(3)] == ["-default/b", "-default/b-1", "+default/c-1"]


async def test_rewriting_a_file_yields_only_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    write(path, service("a"), service("b"), service("c"))
    async with reading(path) as reader:
        assert len(await reader.until_synced()) == 3
        write(path, service("a"), service("b", type="LoadBalancer"), service("d"))
        assert [await reader.next() for _ in range(3)] == ["-default/c", "+default/b", "+default/d"]


async def test_atomic_rename_over_a_single_file_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    write(path, service("a"))
    async with reading(path) as reader:
        await reader.until_synced()
        write(tmp_path / ".all.yaml.tmp", service("a"), service("b"))
        (tmp_path / ".all.yaml.tmp").replace(path)
        assert await reader.next() == "+default/b"


async def test_config_map_symlink_swap_is_seen(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    for version in ("..v1", "..v2"):
        (mount / version).mkdir(parents=True)
    write(mount / "..v1" / "all.yaml", service("old"))
    write(mount / "..v2" / "all.yaml", service("new"))
    (mount / "..data").symlink_to("..v1")
    (mount / "all.yaml").symlink_to("..data/all.yaml")
    async with reading(mount) as reader:
        assert await reader.until_synced() == ["+default/old"]
        (mount / "..tmp").symlink_to("..v2")
        (mount / "..tmp").rename(mount / "..data")
        assert [await reader.next(), await reader.next()] == ["-default/old", "+default/new"]


def test_editors_files_and_other_files_are_ignored(tmp_path: Path) -> None:
    write(tmp_path / "real.yaml", service("real"))
    for name in (
        ".real.yaml.swp",
        ".#real.yaml",
        "#real.yaml#",
        "real.yaml~",
        "real.yaml.bak",
        ".x.yaml",
        "README.md",
    ):
        (tmp_path / name).write_text("{{{ not for us", encoding="utf-8")
    (tmp_path / "directory.yaml").mkdir()
    objects, problems = load_objects(tmp_path)
    assert [item.metadata.name for item in objects] == ["real"]
    assert problems == []


async def test_broken_file_keeps_its_last_good_content_and_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    write(path, service("a"))
    async with reading(tmp_path) as reader:
        await reader.until_synced()
        following = asyncio.ensure_future(reader.next())
        path.write_text("kind: Service: [", encoding="utf-8")
        await reader.reported("a.yaml: line 1")
        assert not following.done()
        assert "a.yaml" in reader.source.statuses["manifests"].last_error
        write(path, service("a", type="LoadBalancer"))
        assert await following == "+default/a"
        assert reader.source.statuses["manifests"].failures == 0


async def test_object_that_became_invalid_keeps_its_last_good_version_and_the_rest_moves_on(
    tmp_path: Path,
) -> None:
    path = tmp_path / "all.yaml"
    write(path, service("a"), service("b"))
    async with reading(tmp_path) as reader:
        await reader.until_synced()
        write(path, service("a", ports=[]), service("b", type="LoadBalancer"))
        assert await reader.next() == "+default/b"
        assert (reader.bad[0].object.kind, reader.bad[0].object.key) == ("Service", "default/a")
        write(path, service("b", type="LoadBalancer"))
        assert await reader.next() == "-default/a"


async def test_same_object_in_two_files_counts_from_the_first_by_name(tmp_path: Path) -> None:
    write(tmp_path / "10.yaml", service("web", "10.96.0.1"))
    write(tmp_path / "20.yaml", service("web", "10.96.0.2"))
    async with reading(tmp_path) as reader:
        assert await reader.until_synced() == ["+default/web"]
        assert (
            render_finding(reader.bad[0]) == "20.yaml: Service default/web: already in 10.yaml, which counts"
        )
        (tmp_path / "10.yaml").unlink()
        event = await anext(reader.stream)
        assert isinstance(event, Upsert)
        assert isinstance(event.object, Service)
        assert event.object.spec.cluster_ip == "10.96.0.2"


def test_same_object_twice_in_one_file_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", service("web", "10.96.0.1"), service("web", "10.96.0.2"))
    objects, problems = load_objects(tmp_path)
    assert len(objects) == 1
    assert "twice in one file" in render_finding(problems[0])


async def test_only_the_own_node_is_delivered_when_it_is_named(tmp_path: Path) -> None:
    write(tmp_path / "nodes.yaml", node("n1"), node("n2"))
    async with reading(tmp_path, node_name="n2") as reader:
        assert await reader.until_synced() == ["+n2"]
    objects, _ = load_objects(tmp_path)
    assert [item.metadata.name for item in objects if isinstance(item, Node)] == ["n1", "n2"]


async def test_path_that_does_not_exist_yet_is_reported_and_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "later"
    async with reading(path) as reader:
        first = asyncio.ensure_future(reader.next())
        await reader.reported("cannot be read")
        assert not first.done()
        path.mkdir()
        write(path / "a.yaml", service("a"))
        seen = [await first]
        while seen[-1] != "+default/a":
            seen.append(await reader.next())


async def test_directory_that_vanishes_takes_nothing_with_it(tmp_path: Path) -> None:
    path = tmp_path / "manifests"
    path.mkdir()
    write(path / "a.yaml", service("a"))
    async with reading(path) as reader:
        await reader.until_synced()
        following = asyncio.ensure_future(reader.next())
        path.rename(tmp_path / "elsewhere")
        await reader.reported("cannot be read")
        assert not following.done()
        (tmp_path / "elsewhere").rename(path)
        write(path / "b.yaml", service("b"))
        assert await following == "+default/b"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file; unreadable files need another user")
def test_unreadable_file_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", service("a"))
    (tmp_path / "a.yaml").chmod(0)
    assert "cannot be read: Permission denied" in str(load_objects(tmp_path)[1][0])


def test_dangling_link_is_reported_and_the_rest_used(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", service("a"))
    (tmp_path / "b.yaml").symlink_to("nowhere.yaml")
    objects, problems = load_objects(tmp_path)
    assert len(objects) == 1
    assert "b.yaml: cannot be read: No such file" in render_finding(problems[0])


async def test_close_ends_the_iteration(tmp_path: Path) -> None:
    async with reading(tmp_path) as reader:
        await reader.until_synced()
        rest = asyncio.ensure_future(anext(reader.stream, None))
        await asyncio.sleep(0.05)
        await reader.source.close()
        async with asyncio.timeout(20):
            assert await rest is None


@pytest.mark.parametrize(
    "path", sorted(GOLDEN.rglob("objects.json")), ids=lambda path: str(path.relative_to(GOLDEN))
)
def test_objects_of_a_real_api_server_pass_without_a_word(path: Path) -> None:
    objects, problems = load_objects(path)
    assert problems == []
    assert len(objects) == len(json.loads(path.read_bytes())["items"])


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def _three_gigabytes(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 30)


def _aliases(path: Path) -> None:
    one = "&web {apiVersion: v1, kind: Service, metadata: {name: w}, spec: {clusterIP: 10.96.0.9, ports: [{port: 1}]}}"
    path.write_text(f"kind: List\nitems: [{one}{', *web' * 200_000}]\n", encoding="utf-8")


def _laughs(path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    path.write_text("\n".join(lines), encoding="utf-8")


def _loop_of_links(path: Path) -> None:
    path.symlink_to(path.name)


def _link_to_a_long_name(path: Path) -> None:
    path.symlink_to("x" * 300)


def _broken(path: Path) -> None:
    path.write_text("kind: Service: [", encoding="utf-8")


def _bad_address(path: Path) -> None:
    write(path, service("web", "10.96.0.300"))


def _misspelt(path: Path) -> None:
    write(path, {"apiVersion": "v1", "kind": "Servce", "metadata": {"name": "web"}})


TROUBLE: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (_pipe, "trouble.yaml: cannot be read: not a regular file"),
    "device": (_device, "trouble.yaml: cannot be read: not a regular file"),
    "socket": (_socket, "trouble.yaml: cannot be read: No such device"),
    "three gigabytes": (_three_gigabytes, "trouble.yaml: cannot be read: larger than 64 MiB"),
    "aliases": (_aliases, "trouble.yaml: line 2: aliases stand for more than 100000 values"),
    "laughs": (_laughs, "aliases stand for more than 100000 values"),
    "loop of links": (_loop_of_links, "trouble.yaml: cannot be read: Too many levels"),
    "link to a long name": (_link_to_a_long_name, "trouble.yaml: cannot be read: File name too long"),
    "broken": (_broken, "trouble.yaml: line 1: "),
    "bad address": (
        _bad_address,
        "trouble.yaml: Service default/web: spec.clusterIPs[0]: '10.96.0.300' is not an IP address",
    ),
    "misspelt": (_misspelt, "trouble.yaml: kind: 'Servce' is unknown; did you mean Service?"),
}


@pytest.mark.parametrize(("make", "reason"), TROUBLE.values(), ids=TROUBLE)
async def test_a_file_that_cannot_be_used_is_named_with_its_reason_until_it_is_mended(
    tmp_path: Path, make: Callable[[Path], None], reason: str
) -> None:
    path = tmp_path / "trouble.yaml"
    make(path)
    write(tmp_path / "good.yaml", service("good"))
    async with reading(tmp_path) as reader:
        assert await reader.until_synced() == ["+default/good"]
        status = reader.source.statuses["manifests"]
        (rejection,) = status.rejected.values()
        assert reason in render_finding(rejection)
        assert status.bad_objects == 1
        assert len(reader.bad) == 1
        path.unlink()
        write(path, service("mended"))
        assert await reader.next() == "+default/mended"
        assert status.bad_objects == 0


def test_a_file_whose_name_is_no_text_is_named_in_text(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"\xff\x1b[2J.yaml")
    odd.write_text("kind: Service: [", encoding="utf-8")
    write(tmp_path / "a.yaml", service("a"))
    write(tmp_path / os.fsdecode(b"\xfe.yaml"), service("a"))
    reading = ManifestFiles(tmp_path).read()
    told = [render_finding(rejection) for rejection in reading.rejected]
    assert told[0] == r"\udcfe.yaml: Service default/a: already in a.yaml, which counts"
    assert told[1].startswith(r"\udcff\x1b[2J.yaml: line 1: ")
    assert msgspec.json.encode(reading.rejected)
    for path in (odd, Path(os.fsdecode(b"\xff"))):
        _, findings = load_objects(path)
        assert msgspec.json.encode(findings)


def test_one_object_a_hundred_thousand_times_is_one_finding(tmp_path: Path) -> None:
    items = ", ".join([json.dumps(service("web"))] * 20_000)
    (tmp_path / "all.json").write_text(f'{{"kind": "List", "items": [{items}]}}', encoding="utf-8")
    objects, findings = load_objects(tmp_path)
    assert (len(objects), len(findings)) == (1, 1)


def test_kinds_of_no_use_to_a_proxy_are_only_counted(tmp_path: Path) -> None:
    for name, kind in (("a", "Deployment"), ("b", "Deployment"), ("c", "ServiceAccount"), ("d", "NodePool")):
        write(tmp_path / f"{name}.yaml", {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}})
    seen = ManifestFiles(tmp_path).read()
    assert seen.rejected == ()
    assert seen.ignored == {"Deployment": 2, "ServiceAccount": 1, "NodePool": 1}
