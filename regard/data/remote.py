"""Data in object stores, such as s3://bucket/texts or gs://bucket/a.jsonl.gz, by fsspec.

They are copied once to the user's cache, under their names, and again when they change.
"""

import os
import re
from pathlib import Path
from typing import Any

from regard.errors import UserError, first_line
from regard.files.atomic import atomic_file, write_text
from regard.files.locks import release, try_lock

ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+)://(.+)")
KEY, LOCK = ".key", ".lock"  # suffixes of files beside a copy: its source, and its lock


def is_remote(path: str) -> bool:
    return ADDRESS.fullmatch(path) is not None


def cache_root() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return Path(os.path.abspath(cache)) / "regard" / "remote"


def fetch(paths: list[str]) -> list[str]:
    """Return paths on the disk; remote files and folders are replaced by their copies."""
    return [fetch_one(path) if is_remote(path) else path for path in paths]


def original_name(path: str) -> str:
    """Return the address of a copy, or the path as it is."""
    root = cache_root()
    if not Path(path).is_relative_to(root):
        return path
    scheme, *rest = Path(path).relative_to(root).parts
    return f"{scheme}://{'/'.join(rest)}"


def list_remote(address: str) -> list[str]:
    """Return the addresses of all visible files of a remote folder, sorted; or that of a file."""
    store, name = open_store(address)
    try:
        if not store.isdir(name):
            return [address]
        files = sorted(store.find(name))
    except Exception as error:  # each store raises its own errors
        raise unreachable(address, error) from None
    scheme = address.partition("://")[0]
    visible = [file for file in files if not Path(file).name.startswith(".")]
    return [f"{scheme}://{file.lstrip('/')}" for file in visible]


def remote_size(address: str) -> int:
    """Return the size of a remote file in bytes."""
    store, name = open_store(address)
    try:
        return int(store.size(name) or 0)
    except Exception as error:  # each store raises its own
        raise unreachable(address, error) from None


def fetch_one(address: str) -> str:
    """Copy a remote file or folder to the cache, unless it is there; return its path there."""
    files = list_remote(address)
    if not files:
        raise UserError(f"{address}: an empty folder, or none; check the address")
    copies = [copy_file(file) for file in files]
    if files == [address]:
        return str(copies[0])
    folder = place_of(address)
    for path in sorted(folder.rglob("*")):  # what is no longer there
        if path.is_file() and path not in copies and not path.name.startswith("."):
            path.unlink()
    return str(folder)


def place_of(address: str) -> Path:
    """Return the place of a remote file's or folder's copy. Raise UserError if it leads out of the cache."""
    match = ADDRESS.fullmatch(address)
    assert match is not None
    parts = [part for part in match[2].split("/") if part]
    if any(part in (".", "..") or "\0" in part for part in parts):
        raise UserError(f"{address}: a name with . or .. in it can't be copied; rename it")
    return cache_root().joinpath(match[1], *parts)


def copy_file(address: str) -> Path:
    """Copy one remote file to the cache, unless it is there and has not changed. Processes wait for each
    other, so that one of them copies it."""
    store, name = open_store(address)
    path = place_of(address)
    try:
        key = str(store.ukey(name))
    except Exception as error:
        raise unreachable(address, error) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}{KEY}")
    handle = os.open(path.with_name(f".{path.name}{LOCK}"), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try_lock(handle, wait=True)
        if path.is_file() and beside.is_file() and beside.read_text("utf-8") == key:
            return path
        beside.unlink(missing_ok=True)
        with atomic_file(path) as partial:
            try:
                store.get_file(name, str(partial))
            except Exception as error:
                raise unreachable(address, error) from None
        write_text(beside, key)
    finally:
        release(handle)
    return path


def open_store(address: str) -> tuple[Any, str]:
    """Return the store of an address, and the name of a file in it."""
    try:
        import fsspec
    except ImportError:
        raise UserError(f"{address}: needs fsspec: pip install 'regard[remote]'") from None
    try:
        store, name = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:  # another package, or no such scheme
        raise UserError(
            f"{address}: {first_line(error)}; pip install 'regard[remote]' has s3 and gs"
        ) from None
    return store, name


def unreachable(address: str, error: Exception) -> UserError:
    return UserError(f"{address}: cannot be read ({first_line(error)}); check the address and credentials")
