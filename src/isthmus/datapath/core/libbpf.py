"""libbpf.so.1 by ctypes: the few calls we use, each with errno, none with a policy.

File descriptors returned here belong to the caller. The log of libbpf while it opens or loads an object, including the
verifier's last lines, becomes part of the error.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

SONAME = "libbpf.so.1"
ANY = 0
_KEEP = 40
_DEBUG = 2
"""LIBBPF_DEBUG of libbpf.h."""
_LOGGED = 1 << 20
"""Longest message in bytes: the verifier's log is a single message, whose last lines matter."""
_BATCH = 4096
_PER_PROCESSOR = (5, 6)
"""BPF_MAP_TYPE_PERCPU_HASH and BPF_MAP_TYPE_PERCPU_ARRAY of linux/bpf.h."""
_ENOTSUPP = 524
"""Errno of a batch operation on a map without batches, such as a per-CPU array or an LPM trie before Linux 5.13."""
_PRINT = ctypes.CFUNCTYPE(c_int, c_int, c_char_p, c_void_p)
SAMPLE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)
"""Type of libbpf's callback for each event of a ring buffer: (context, data, size)."""
_log: list[str] = []


class BpfError(OSError):
    """A failed call: errno, and a sentence that names the attempt."""


class _MapInfo(ctypes.Structure):
    """The first fields of struct bpf_map_info, which never move."""

    _fields_ = (
        ("type", c_uint32),
        ("id", c_uint32),
        ("key_size", c_uint32),
        ("value_size", c_uint32),
        ("max_entries", c_uint32),
        ("map_flags", c_uint32),
    )


class _LinkInfo(ctypes.Structure):
    """The first fields of struct bpf_link_info, for a link to a cgroup."""

    _fields_ = (("type", c_uint32), ("id", c_uint32), ("prog_id", c_uint32), ("pad", c_uint32), ("cgroup", c_uint64))


class _ProgInfo(ctypes.Structure):
    """The first fields of struct bpf_prog_info, which never move."""

    _fields_ = (
        ("type", c_uint32), ("id", c_uint32), ("tag", ctypes.c_uint8 * 8), ("lengths", c_uint32 * 2),
        ("instructions", c_uint64 * 2), ("load_time", c_uint64), ("uid", c_uint32), ("nr_map_ids", c_uint32),
        ("map_ids", c_uint64), ("name", ctypes.c_char * 16),
    )  # fmt: skip


_MOST_PROGRAMS = 64
"""BPF_CGROUP_MAX_PROGS of the kernel."""


@cache
def library() -> ctypes.CDLL:
    """The library. Raises OSError if it is not installed."""
    lib = ctypes.CDLL(SONAME, use_errno=True)
    pointers: dict[str, tuple[Any, ...]] = {
        "bpf_object__open_file": (c_char_p, c_void_p),
        "bpf_object__find_map_by_name": (c_void_p, c_char_p),
        "bpf_object__next_map": (c_void_p, c_void_p),
        "bpf_object__find_program_by_name": (c_void_p, c_char_p),
        "bpf_object__btf": (c_void_p,),
        "bpf_map__name": (c_void_p,),
        "bpf_program__attach_cgroup": (c_void_p, c_int),
        "bpf_link__open": (c_char_p,),
        "btf__raw_data": (c_void_p, POINTER(c_uint32)),
        "ring_buffer__new": (c_int, SAMPLE, c_void_p, c_void_p),
    }
    integers: dict[str, tuple[Any, ...]] = {
        "bpf_object__load": (c_void_p,),
        "bpf_map__fd": (c_void_p,),
        "bpf_map__key_size": (c_void_p,),
        "bpf_map__value_size": (c_void_p,),
        "bpf_map__max_entries": (c_void_p,),
        "bpf_map__set_pin_path": (c_void_p, c_char_p),
        "bpf_map__set_max_entries": (c_void_p, c_uint32),
        "bpf_map__set_initial_value": (c_void_p, c_void_p, c_size_t),
        "bpf_program__fd": (c_void_p,),
        "bpf_link__pin": (c_void_p, c_char_p),
        "bpf_link__update_program": (c_void_p, c_void_p),
        "bpf_link__detach": (c_void_p,),
        "bpf_link__destroy": (c_void_p,),
        "bpf_obj_get": (c_char_p,),
        "bpf_obj_pin": (c_int, c_char_p),
        "bpf_obj_get_info_by_fd": (c_int, c_void_p, POINTER(c_uint32)),
        "bpf_map_update_elem": (c_int, c_void_p, c_void_p, c_uint64),
        "bpf_map_lookup_elem": (c_int, c_void_p, c_void_p),
        "bpf_map_delete_elem": (c_int, c_void_p),
        "bpf_map_get_next_key": (c_int, c_void_p, c_void_p),
        "libbpf_num_possible_cpus": (),
        "bpf_map_update_batch": (c_int, c_void_p, c_void_p, POINTER(c_uint32), c_void_p),
        "bpf_map_delete_batch": (c_int, c_void_p, POINTER(c_uint32), c_void_p),
        "bpf_map_lookup_batch": (c_int, c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_uint32), c_void_p),
        "ring_buffer__epoll_fd": (c_void_p,),
        "ring_buffer__consume": (c_void_p,),
        "libbpf_probe_bpf_helper": (c_int, c_int, c_void_p),
        "bpf_prog_query": (c_int, c_int, c_uint32, c_void_p, c_void_p, POINTER(c_uint32)),
        "bpf_prog_get_fd_by_id": (c_uint32,),
    }
    for name, arguments in pointers.items():
        function = getattr(lib, name)
        function.argtypes, function.restype = arguments, c_void_p
    for name, arguments in integers.items():
        function = getattr(lib, name)
        function.argtypes, function.restype = arguments, c_int
    lib.bpf_map__name.restype = c_char_p
    lib.bpf_object__close.argtypes, lib.bpf_object__close.restype = (c_void_p,), None
    lib.ring_buffer__free.argtypes, lib.ring_buffer__free.restype = (c_void_p,), None
    lib.libbpf_set_print.argtypes, lib.libbpf_set_print.restype = (_PRINT,), c_void_p
    lib.libbpf_set_print(_log_callback)
    return lib


def _on_log(level: int, form: bytes, arguments: int) -> int:
    if level >= _DEBUG:  # a thousand lines per load, none of them about an error
        return 0
    buffer = ctypes.create_string_buffer(_LOGGED)
    _vsnprintf()(buffer, len(buffer), form, arguments)
    _log.extend(line for line in buffer.value.decode(errors="replace").splitlines() if line.strip())
    del _log[:-_KEEP]
    return 0


_log_callback = _PRINT(_on_log)


@cache
def _vsnprintf() -> Any:
    function = ctypes.CDLL(None).vsnprintf
    function.argtypes = (c_void_p, c_size_t, c_char_p, c_void_p)
    return function


def _failed(what: str, *, log: bool = False) -> BpfError:
    code = ctypes.get_errno()
    message = f"{what}: {os.strerror(code)}"
    if log and _log:
        message += "\n  " + "\n  ".join(_log[-8:])
    return BpfError(code, message)


def _checked(result: int | None, what: str, *, log: bool = False) -> int:
    if result is None or result < 0:
        raise _failed(what, log=log)
    return result


class Object:
    """A compiled object: open it, pin its maps, load it."""

    def __init__(self, path: Path) -> None:
        _log.clear()
        self._lib = library()
        self._pointer = self._lib.bpf_object__open_file(os.fsencode(path), None)
        if not self._pointer:
            raise _failed(f"cannot open {path}", log=True)
        self.path = path

    def maps(self) -> dict[str, int]:
        """Its maps by name, as libbpf's pointers, without internal ones (.rodata)."""
        pointers: dict[str, int] = {}
        pointer: int | None = None
        while pointer := self._lib.bpf_object__next_map(self._pointer, pointer):
            name = self._lib.bpf_map__name(pointer).decode()
            if "." not in name:
                pointers[name] = pointer
        return pointers

    def btf(self) -> bytes:
        """The raw BTF of the object."""
        size = c_uint32()
        data = self._lib.btf__raw_data(self._lib.bpf_object__btf(self._pointer), byref(size))
        if not data:
            raise _failed(f"{self.path} carries no BTF")
        return ctypes.string_at(data, size.value)

    def pin_map(self, map_pointer: int, path: Path) -> None:
        """Make ``load`` reuse the map pinned at ``path``, or pin a new one there."""
        _checked(self._lib.bpf_map__set_pin_path(map_pointer, os.fsencode(path)), f"cannot pin at {path}")

    def resize(self, map_pointer: int, entries: int) -> None:
        """Set the number of entries of a map that is not created yet."""
        _checked(self._lib.bpf_map__set_max_entries(map_pointer, entries), "cannot set the size of a map")

    def set_constants(self, values: bytes) -> None:
        """Set the value of the object's single constant struct (.rodata), before it is loaded."""
        pointer = self._lib.bpf_object__find_map_by_name(self._pointer, b".rodata")
        what = "cannot set the constants"
        _checked(self._lib.bpf_map__set_initial_value(pointer, values, c_size_t(len(values))), what)

    def load(self) -> None:
        """Load the maps, then the programs, into the kernel."""
        _log.clear()
        _checked(self._lib.bpf_object__load(self._pointer), f"cannot load {self.path.name}", log=True)

    def map_shape(self, map_pointer: int) -> tuple[int, int, int]:
        """(key size, value size, entries) of a map, as the object declares it."""
        sizes = (self._lib.bpf_map__key_size, self._lib.bpf_map__value_size, self._lib.bpf_map__max_entries)
        key, value, entries = (int(size(map_pointer)) for size in sizes)
        return key, value, entries

    def map_fd(self, map_pointer: int) -> int:
        """A descriptor of a loaded map that outlives the object."""
        return os.dup(_checked(self._lib.bpf_map__fd(map_pointer), "map is not loaded"))

    def program(self, name: str) -> int:
        """A program of the object, as libbpf's pointer."""
        pointer = self._lib.bpf_object__find_program_by_name(self._pointer, name.encode())
        if not pointer:
            raise _failed(f"{self.path.name} has no program {name}")
        return int(pointer)

    def program_fd(self, name: str) -> int:
        """The descriptor of a loaded program; the object's, not the caller's."""
        return _checked(self._lib.bpf_program__fd(self.program(name)), f"{name} is not loaded")

    def attach_cgroup(self, program: int, cgroup_fd: int, pin: Path) -> None:
        """Attach by a link (multi mode), which is pinned at ``pin`` and outlives the process."""
        link = self._lib.bpf_program__attach_cgroup(program, cgroup_fd)
        if not link:
            raise _failed(f"cannot attach {pin.name}")
        try:
            _checked(self._lib.bpf_link__pin(link, os.fsencode(pin)), f"cannot pin at {pin}")
        finally:
            self._lib.bpf_link__destroy(link)

    def close(self) -> None:
        """Free libbpf's memory; pinned maps and attached programs stay."""
        if self._pointer:
            self._lib.bpf_object__close(self._pointer)
            self._pointer = None


def update_link(pin: Path, program: int) -> None:
    """Replace the program of a pinned link atomically."""
    with _Link(pin) as link:
        _checked(library().bpf_link__update_program(link, program), f"cannot update the link at {pin}")


def link_info(fd: int) -> tuple[int, int]:
    """(cgroup id, program id) of a link; the cgroup id is 0 once the cgroup is deleted or the link detached."""
    info = _LinkInfo()
    size = c_uint32(ctypes.sizeof(info))
    _checked(library().bpf_obj_get_info_by_fd(fd, byref(info), byref(size)), "cannot read about a link")
    return int(info.cgroup), int(info.prog_id)


def cgroup_programs(cgroup_fd: int, attach_type: int) -> list[tuple[int, str]]:
    """(id, name) of each program that is attached to a cgroup itself at a hook."""
    ids, count = (c_uint32 * _MOST_PROGRAMS)(), c_uint32(_MOST_PROGRAMS)
    result = library().bpf_prog_query(cgroup_fd, attach_type, 0, None, byref(ids), byref(count))
    _checked(result, "cannot list the programs of a cgroup")
    programs = []
    for number in ids[: count.value]:
        fd = library().bpf_prog_get_fd_by_id(number)
        if fd < 0:
            continue  # it has ended
        try:
            info = _ProgInfo()
            size = c_uint32(ctypes.sizeof(info))
            _checked(library().bpf_obj_get_info_by_fd(fd, byref(info), byref(size)), "cannot read about a program")
            programs.append((int(number), info.name.decode(errors="replace")))
        finally:
            os.close(fd)
    return programs


def link_target(fd: int) -> int:
    """Interface to which a tcx link is attached; 0 once it is deleted."""
    return link_info(fd)[0] & 0xFFFFFFFF


def detach_link(pin: Path) -> None:
    """Detach at once, whoever else holds the link. A link whose cgroup was deleted is detached already."""
    with _Link(pin) as link:
        if library().bpf_link__detach(link) < 0 and ctypes.get_errno() != errno.ENOLINK:
            raise _failed(f"cannot detach the link at {pin}")


class _Link:
    def __init__(self, pin: Path) -> None:
        self._pin = pin

    def __enter__(self) -> int:
        self._pointer = library().bpf_link__open(os.fsencode(self._pin))
        if not self._pointer:
            raise _failed(f"cannot open the link at {self._pin}")
        return int(self._pointer)

    def __exit__(self, *_: object) -> None:
        library().bpf_link__destroy(self._pointer)


def open_pinned(path: Path) -> int:
    """A descriptor of the map or link pinned at ``path``."""
    return _checked(library().bpf_obj_get(os.fsencode(path)), f"cannot open {path}")


def pin(fd: int, path: Path) -> None:
    """Pin a map or a link at ``path``."""
    if library().bpf_obj_pin(fd, os.fsencode(path)) < 0:
        raise BpfError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def map_info(fd: int) -> tuple[int, int, int]:
    """(key size, value size, entries) of a map."""
    info = _info(fd)
    return info.key_size, info.value_size, info.max_entries


def _info(fd: int) -> _MapInfo:
    info = _MapInfo()
    size = c_uint32(ctypes.sizeof(info))
    _checked(library().bpf_obj_get_info_by_fd(fd, byref(info), byref(size)), "cannot read about a map")
    return info


def value_size(fd: int) -> int:
    """Bytes of a map's value; of a per-CPU map, of the values of all processors together."""
    info = _info(fd)
    size = int(info.value_size)
    return (size + 7) // 8 * 8 * possible_cpus() if info.type in _PER_PROCESSOR else size


def has_helper(program_type: int, helper: int) -> bool:
    """True if this kernel lets programs of a type call a helper."""
    return bool(library().libbpf_probe_bpf_helper(program_type, helper, None) == 1)


def update(fd: int, key: bytes, value: bytes) -> None:
    """Write one entry."""
    _checked(library().bpf_map_update_elem(fd, key, value, ANY), "cannot write to a map")


def lookup(fd: int, key: bytes, size: int) -> bytes:
    """Read one entry. ``size`` is that of its value, in a per-CPU map times the possible processors."""
    value = ctypes.create_string_buffer(size)
    _checked(library().bpf_map_lookup_elem(fd, key, value), "cannot read a map")
    return value.raw


def possible_cpus() -> int:
    """Number of values in an entry of a per-CPU map."""
    return _checked(library().libbpf_num_possible_cpus(), "cannot count processors")


def update_batch(fd: int, items: Sequence[tuple[bytes, bytes]]) -> tuple[int, int]:
    """Write entries in order. Returns (number written, errno that stopped it or 0)."""
    number = c_uint32(len(items))
    keys, values = b"".join(k for k, _ in items), b"".join(v for _, v in items)
    if library().bpf_map_update_batch(fd, keys, values, byref(number), None) >= 0:
        return len(items), 0
    if ctypes.get_errno() == _ENOTSUPP:
        for key, value in items:
            update(fd, key, value)
        return len(items), 0
    return _done(number.value, len(items)), ctypes.get_errno()


def delete_batch(fd: int, keys: Sequence[bytes]) -> tuple[int, int]:
    """Delete entries in order. Returns (number deleted, errno that stopped it or 0)."""
    number = c_uint32(len(keys))
    if library().bpf_map_delete_batch(fd, b"".join(keys), byref(number), None) >= 0:
        return len(keys), 0
    if ctypes.get_errno() == _ENOTSUPP:
        for position, key in enumerate(keys):
            if library().bpf_map_delete_elem(fd, key) < 0:
                return position, ctypes.get_errno()
        return len(keys), 0
    return _done(number.value, len(keys)), ctypes.get_errno()


def ring_open(fd: int, callback: Any) -> int:
    """A reader of a ring buffer map."""
    pointer = library().ring_buffer__new(fd, callback, None, None)
    if not pointer:
        raise _failed("cannot read a ring buffer")
    return int(pointer)


def ring_fd(pointer: int) -> int:
    """Descriptor that is readable while a ring buffer is not empty; owned by the reader."""
    return int(library().ring_buffer__epoll_fd(pointer))


def ring_consume(pointer: int) -> int:
    """Pass every event to the callback. Returns their number."""
    return _checked(library().ring_buffer__consume(pointer), "cannot read a ring buffer")


def ring_close(pointer: int) -> None:
    """Free a reader."""
    library().ring_buffer__free(pointer)


def _done(reported: int, asked: int) -> int:
    """Number of entries done: a kernel that refuses a batch before its first entry leaves the count unchanged."""
    return reported if reported < asked else 0


def items(fd: int, *, empty: bytes | None = None) -> list[tuple[bytes, bytes]]:
    """Every entry of a hash or array map, read in batches; concurrent writes may or may not be included.

    Entries with the value ``empty`` are omitted.
    """
    key_size, value_size, entries = map_info(fd)
    size = min(entries, _BATCH)
    collected: list[tuple[bytes, bytes]] = []
    token: Any = None
    following = c_uint64()
    while True:
        keys, values = ctypes.create_string_buffer(size * key_size), ctypes.create_string_buffer(size * value_size)
        number = c_uint32(size)
        result = library().bpf_map_lookup_batch(fd, token, byref(following), keys, values, byref(number), None)
        code = 0 if result >= 0 else ctypes.get_errno()
        if code == _ENOTSUPP:
            return _items_one_by_one(fd, key_size, value_size)
        if code == errno.ENOSPC:  # a bucket holds more than the buffers
            size *= 2
            continue
        if code not in (0, errno.ENOENT):
            raise _failed("cannot read a map")
        raw_keys, raw_values = keys.raw, values.raw[: number.value * value_size]
        if empty is None or raw_values != empty * number.value:
            pairs = (
                (raw_keys[n * key_size : (n + 1) * key_size], raw_values[n * value_size : (n + 1) * value_size])
                for n in range(number.value)
            )
            collected += [pair for pair in pairs if pair[1] != empty]
        if code == errno.ENOENT:
            return collected
        token = byref(c_uint64(following.value))


def _items_one_by_one(fd: int, key_size: int, value_size: int) -> list[tuple[bytes, bytes]]:
    """Every entry of a map without batches. One that is deleted meanwhile can make others appear twice."""
    collected: dict[bytes, bytes] = {}
    key, following = None, ctypes.create_string_buffer(key_size)
    while library().bpf_map_get_next_key(fd, key, following) >= 0 and following.raw not in collected:
        key = following.raw
        try:
            collected[key] = lookup(fd, key, value_size)
        except BpfError:
            return list(collected.items())  # it was deleted
    return list(collected.items())
