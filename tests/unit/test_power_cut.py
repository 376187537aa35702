"""Checkpoints through a power cut: what may be on the disk after each operation of a save is a whole checkpoint."""

import itertools
import os
import shutil

import numpy as np
import pytest

from platoon_base.checkpoints.files import About, Checkpoint, CheckpointFolder, read_checkpoint
from platoon_base.layout import Layout
from platoon_base.system.folder_lock import LOCK_FILE

pytestmark = pytest.mark.base


def make(value):
    center = [np.full((50, 40), value, "float32"), np.full(3, value, "float64")]
    return Checkpoint.of(About(seed=0, size=1, seconds=0.0), Layout.of(center), center, [])


def value_of(path):
    """The value that a checkpoint was made of; raises ConfigurationError unless it is whole."""
    found = read_checkpoint(path)
    assert all((array == found.center[0].flat[0]).all() for array in found.center)
    return int(found.center[0].flat[0])


class Disk:
    """A folder's contents that are sure to outlive a power cut, followed from one operation to the next.

    Names are sure once the folder was forced to the disk, the bytes of a file once the file was. Of everything else
    any part may be there, in any order: this is more than what file systems do.
    """

    def __init__(self, folder):
        self.folder = folder
        self.names, self.data = {}, {}  # name -> inode, inode -> bytes
        self.held = {}  # open files: the inode of one that is removed is not given to another
        self.force_names()

    def now(self):
        files = {entry.name: entry.stat().st_ino for entry in os.scandir(self.folder) if entry.name != LOCK_FILE}
        for name, inode in files.items():
            if inode not in self.held:
                self.held[inode] = os.open(self.folder / name, os.O_RDONLY)
        return files, {inode: os.pread(fd, 1 << 20, 0) for inode, fd in self.held.items()}

    def force_names(self):
        self.names = self.now()[0]

    def force_bytes(self, inode):
        self.data.update({found: data for found, data in self.now()[1].items() if found == inode})

    def after_a_cut(self):
        """Yield every folder that may be found, as bytes by name."""
        names, data = self.now()
        changed = [name for name in {*names, *self.names} if names.get(name) != self.names.get(name)]
        for which in itertools.product([names, self.names], repeat=len(changed)):
            found = {**names, **{name: side.get(name) for name, side in zip(changed, which)}}
            there = {name: inode for name, inode in found.items() if inode is not None}
            contents = [self._contents(inode, data.get(inode, b"")) for inode in there.values()]
            for chosen in itertools.product(*contents):
                yield dict(zip(there, chosen))

    def _contents(self, inode, written):
        """What may be in a file: what is sure, or a part of what was written since."""
        sure = self.data.get(inode, b"")
        return [sure] if sure == written or not written else [sure, written[: len(written) // 2], written]


@pytest.fixture
def cuts(tmp_path, monkeypatch):
    """Save checkpoints, and return what may be found after each operation: (the latest saved before, folder)."""
    kept = CheckpointFolder(tmp_path / "kept")
    disk, found, saved = Disk(kept.path), [], [0]

    def look():
        found.extend((saved[-1], contents) for contents in disk.after_a_cut())

    def watch(name, after):
        real = getattr(os, name)

        def call(*args, **kwargs):
            look()
            result = real(*args, **kwargs)
            after(*args)
            look()
            return result

        monkeypatch.setattr(os, name, call)

    def forced(fd):
        status = os.fstat(fd)
        if status.st_ino == os.stat(kept.path).st_ino:
            disk.force_names()
        else:
            disk.force_bytes(status.st_ino)

    watch("fsync", forced)
    watch("fdatasync", forced)
    for name in ("replace", "rename", "unlink"):
        watch(name, lambda *args: None)

    def save(value):
        kept.save(make(value))
        saved.append(value)
        look()

    for value in (1, 2, 3, 4):
        save(value)
    kept.close()
    monkeypatch.undo()
    for fd in disk.held.values():
        os.close(fd)
    return found


def test_after_a_cut_at_any_moment_each_checkpoint_is_whole_and_the_latest_is_there(cuts, tmp_path):
    """A save is over when it returns: from then on its checkpoint is there, and before that the one before it."""
    assert len(cuts) > 40
    known = {}  # by contents: most cuts find what another has found
    for number, (saved, contents) in enumerate(cuts):
        key = tuple(sorted(contents.items()))
        if key not in known:
            folder = tmp_path / f"cut{number}"
            folder.mkdir()
            for name, data in contents.items():
                (folder / name).write_bytes(data)
            reopened = CheckpointFolder(folder)
            whole = {path.name: value_of(path) for path in map(reopened.file, reopened.numbers())}
            newest = reopened.newest()
            known[key] = (whole, 0 if newest is None else value_of(newest[0]))
            # The folder goes on from there, whatever the cut has left.
            assert value_of(reopened.save(make(9))) == 9
            reopened.close()
        whole, newest = known[key]
        assert newest in (saved, saved + 1), f"operation {number}: {whole}"
        assert max(whole.values(), default=0) == newest


@pytest.mark.parametrize("is_removed", [False, True])
def test_new_folders_are_there_after_a_cut_too(tmp_path, monkeypatch, is_removed):
    """The name of a folder is in the one above it, which has to be forced to the disk as well."""
    forced, real_fsync = set(), os.fsync

    def fsync(fd):
        real_fsync(fd)
        forced.add(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    kept = CheckpointFolder(tmp_path / "new" / "newer" / "kept")
    if is_removed:
        shutil.rmtree(tmp_path / "new")
        forced.clear()
    kept.save(make(1))
    kept.close()
    assert {folder.stat().st_ino for folder in (kept.path, *list(kept.path.parents)[:3])} <= forced
