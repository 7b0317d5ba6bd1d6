"""Files in a .zip, under the path ARCHIVE.zip/MEMBER; nothing is unpacked on the disk."""

import errno
import io
import os
import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Any

from regard.errors import UserError, first_line
from regard.files.regular import regular_stat

if TYPE_CHECKING:
    from regard.vision.decoding import ImageSource

SUFFIX = ".zip"
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
MAX_MEMBERS = 2_000_000
LOCAL_HEADER = struct.Struct("<4s22xHH")  # before the bytes of a member: signature, lengths of name and extra
METHODS = {9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz"}  # methods that are not read
ENCRYPTED = 1  # in the flags of a member
BLOCK = 2**16  # bytes that are read at a time


@dataclass(frozen=True)
class Member:
    """A file in a .zip."""

    offset: int  # of its header
    length: int  # in the archive
    size: int  # when it is unpacked
    method: int
    crc: int
    is_encrypted: bool


@dataclass(frozen=True)
class Archive:
    members: dict[str, Member]  # by name
    unpacked: int  # bytes of all of them


# Paths


def find_mode(path: str) -> int | None:
    """Return the mode of what has this path on the disk, or None if nothing has. Raise the error if that
    cannot be determined, where `os.path.isfile` returns False."""
    try:
        return os.stat(path).st_mode
    except ValueError:  # a zero byte
        return None
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise


def on_disk(path: str) -> bool:
    mode = find_mode(path)
    return mode is not None and stat.S_ISREG(mode)


def split_path(path: str) -> tuple[str, str] | None:
    """Return the archive and the name in it ("" for all of it); None if a path is not in an archive."""
    path = str(path)
    end = path.lower().find(SUFFIX)
    while end >= 0:
        end += len(SUFFIX)
        if path[end : end + 1] in ("", "/", os.sep) and on_disk(path[:end]):
            return path[:end], path[end + 1 :].replace(os.sep, "/").strip("/")
        end = path.lower().find(SUFFIX, end)
    return None


def is_file(path: str) -> bool:
    """Return whether a path is a file that can be read, on the disk or in an archive."""
    place = split_path(path)
    return on_disk(path) if place is None else place[1] in read_archive(place[0]).members


def is_folder(path: str) -> bool:
    """Return whether a path is a folder on the disk, an archive, or a folder in one."""
    place = split_path(path)
    if place is None:
        mode = find_mode(path)
        return mode is not None and stat.S_ISDIR(mode)
    archive, name = place
    return not name or any(member.startswith(f"{name}/") for member in read_archive(archive).members)


def path_exists(path: str) -> bool:
    return find_mode(path) is not None or is_file(path) or is_folder(path)


def file_size(path: str) -> int:
    """Return the size of a file in bytes, unpacked if it is in an archive; 0 if it is not a file."""
    place = split_path(path)
    if place is None:
        return os.path.getsize(path) if on_disk(path) else 0
    member = read_archive(place[0]).members.get(place[1])
    return 0 if member is None else member.size


def list_archive(path: str) -> list[str]:
    """Return the paths of all visible files in an archive, or in a folder of it."""
    archive, name = split_path(path) or (path, "")
    prefix = f"{name}/" if name else ""
    names = [member for member in read_archive(archive).members if member.startswith(prefix)]
    for member in names:
        if member.lower().endswith(SUFFIX):
            raise UserError(f"{archive}/{member}: a zip within a zip; unpack {archive}, and give that folder")
    return [f"{archive}/{member}" for member in names if _is_visible(member)]


def list_entries(folder: str) -> list[tuple[str, bool]]:
    """Return the names of a folder's visible entries, sorted, and whether each is a folder."""
    if split_path(folder) is None:
        visible = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
        return sorted((e.name, os.path.isdir(e.path) if e.is_symlink() else e.is_dir()) for e in visible)
    folder = folder.rstrip("/" + os.sep)
    entries: dict[str, bool] = {}
    for path in list_archive(folder):
        name, _, below = path[len(folder) + 1 :].partition("/")
        entries[name] = entries.get(name, False) or bool(below)
    return sorted(entries.items())


def enter_archive(path: str, has_classes: bool) -> str:
    """Return the path of the only folder in an archive, if everything is in one.

    `has_classes`: folders are named after classes, so a folder with files in it is a class.
    """
    while split_path(path) is not None and is_folder(path):
        entries = list_entries(path)
        if len(entries) != 1 or not entries[0][1]:
            break
        inside = f"{path.rstrip('/')}/{entries[0][0]}"
        if has_classes and not all(is_dir for _, is_dir in list_entries(inside)):
            break
        path = inside
    return path


def _is_visible(member: str) -> bool:
    parts = member.split("/")
    return parts[0] != "__MACOSX" and not any(part.startswith(".") and part != ".." for part in parts)


# Contents


def read_archive(archive: str) -> Archive:
    """Read the list of an archive's files."""
    status = regular_stat(archive)
    return _read_archive(archive, status.st_size, status.st_mtime_ns)


@lru_cache(16)
def _read_archive(archive: str, size: int, changed: int) -> Archive:
    try:
        with zipfile.ZipFile(archive) as file:
            infos = file.infolist()
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError) as error:
        raise UserError(f"{archive}: not a complete zip ({first_line(error)}); get it again") from None
    if len(infos) > MAX_MEMBERS:
        raise UserError(
            f"{archive}: {len(infos):,} files, over {MAX_MEMBERS:,}; unpack it, and give the folder"
        )
    members = {
        info.filename: Member(
            *(info.header_offset, info.compress_size, info.file_size),
            *(info.compress_type, info.CRC, bool(info.flag_bits & ENCRYPTED)),
        )
        for info in infos
        if not info.is_dir() and not stat.S_ISLNK(info.external_attr >> 16)
    }
    return Archive(members, sum(member.size for member in members.values()))


def find_member(path: str) -> tuple[str, Member]:
    """Return the archive and the member at a path; raise UserError if it can't be read."""
    archive, name = split_path(path) or (path, "")
    member = read_archive(archive).members.get(name)
    if member is None:
        raise UserError(f"{path}: no such file in {archive}; check the name")
    if member.is_encrypted:
        raise UserError(f"{path}: encrypted; unpack it with its password, and give the folder")
    if member.method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        method = METHODS.get(member.method, f"method {member.method}")
        raise UserError(f"{path}: compressed by {method}, which is not read; unpack it, and give the folder")
    return archive, member


def find_start(file: IO[bytes], path: str, member: Member) -> int:
    """Return the place where the bytes of a member begin."""
    file.seek(member.offset)
    head = file.read(LOCAL_HEADER.size)
    if len(head) < LOCAL_HEADER.size or head[:4] != b"PK\x03\x04":
        raise damaged_member(path, "its header is missing")
    _, name, extra = LOCAL_HEADER.unpack(head)
    return member.offset + LOCAL_HEADER.size + int(name) + int(extra)


def damaged_member(path: str, reason: str) -> UserError:
    return UserError(f"{path}: damaged in the zip ({reason}); get it again")


class _MemberReader(io.RawIOBase):
    """The content of a member. It has no more bytes than the archive says, and is checked at its end."""

    def __init__(self, file: IO[bytes], path: str, member: Member) -> None:
        self.file, self.path, self.member = file, path, member
        file.seek(find_start(file, path, member))
        self.left, self.count, self.crc = member.length, 0, 0
        self.inflater = zlib.decompressobj(-zlib.MAX_WBITS) if member.method else None

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data and self.count < self.member.size:
            data = self._next(len(buffer))
        self.count += len(data)
        self.crc = zlib.crc32(data, self.crc)
        if not data and (self.count, self.crc) != (self.member.size, self.member.crc):
            raise damaged_member(self.path, "its checksum differs")
        buffer[: len(data)] = data
        return len(data)

    def _next(self, limit: int) -> bytes:
        """Return some bytes, perhaps none yet; raise UserError where the archive has too few."""
        limit = min(limit, self.member.size - self.count)
        pending = self.inflater.unconsumed_tail if self.inflater else b""
        if not pending:
            pending = self.file.read(min(self.left, BLOCK if self.inflater else limit))
            self.left -= len(pending)
        if not pending:
            raise damaged_member(self.path, "it ends too early")
        try:
            return self.inflater.decompress(pending, limit) if self.inflater else pending
        except zlib.error as error:
            raise damaged_member(self.path, first_line(error)) from None


def open_member(path: str) -> tuple[IO[bytes], int]:
    """Open a file in an archive, unpacked; return its size, too."""
    archive, member = find_member(path)
    file = open(archive, "rb")  # noqa: SIM115 - closed by the reader
    return io.BufferedReader(_MemberReader(file, path, member), BLOCK), member.size


def find_source(path: str) -> "ImageSource":
    """Return the place of an image's or a recording's bytes, on the disk or in an archive."""
    from regard.vision.decoding import ImageSource  # imports Pillow

    if split_path(path) is None:
        return ImageSource(path, path)
    archive, member = find_member(path)
    with open(archive, "rb") as file:
        start = find_start(file, path, member)
    return ImageSource(archive, path, start, member.length, member.size if member.method else -1)


def archive_of(path: str) -> str:
    """Return the file on the disk that holds a path: an archive, or itself."""
    place = split_path(path)
    return path if place is None else place[0]
