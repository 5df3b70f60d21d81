"""What this machine has, as the kernel and the driver say it: memory, /dev/shm, disks, limits, ports, GPUs.

Facts only; what they mean for a run is said in environment.py and preflight.py. Nothing here imports torch.
"""

import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

UNLIMITED_BYTES = 1 << 60
"""cgroup v1 writes 'no limit' as a number near 2**63, rounded to pages."""
NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "9p", "afs", "wekafs")
NETWORK_FUSE = ("sshfs", "s3fs", "gcsfuse", "goofys", "juicefs", "rclone", "mountpoint-s3", "blobfuse", "alluxio")


@dataclass(frozen=True, kw_only=True, slots=True)
class HostMemory:
    """Host RAM as this process may use it: the machine's, or its control group's when that is less."""

    total_bytes: int
    available_bytes: int
    limited_by: str
    """'machine' or the control group's path."""
    swap_used_bytes: int
    swap_total_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """A file system: where it is mounted, its kind, its bytes."""

    path: str
    mount: str
    kind: str
    total_bytes: int
    free_bytes: int

    @property
    def is_network(self) -> bool:
        kind = self.kind.lower()
        return kind.startswith(NETWORK_FILE_SYSTEMS) or any(name in kind for name in NETWORK_FUSE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU as NVML reports it; memory is the driver's view, all processes together."""

    index: int
    name: str
    total_bytes: int
    free_bytes: int
    capability: tuple[int, int]
    process_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpus:
    """All GPUs, or why there are none to see."""

    driver: str = ""
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""


def host_memory(root: Path = Path("/")) -> HostMemory:
    """RAM and swap within control groups (v1 and v2); `root` is where /proc and /sys stand (for tests)."""
    import psutil

    machine, swap = psutil.virtual_memory(), psutil.swap_memory()
    total, available, limited_by = machine.total, machine.available, "machine"
    for folder in _memory_groups(root):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        if limit is None or limit >= UNLIMITED_BYTES:
            continue
        if limit < total:
            total, limited_by = limit, str(folder)
        available = min(available, max(0, limit - _group_use_bytes(folder)))
    return HostMemory(
        total_bytes=total,
        available_bytes=available,
        limited_by=limited_by,
        swap_used_bytes=swap.used,
        swap_total_bytes=swap.total,
    )


def _memory_groups(root: Path) -> list[Path]:
    """Folders of the memory controller from this process's group up to its root (a parent's limit binds too)."""
    try:
        entries = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for entry in entries:
        _, controllers, group = entry.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        # In a container the path may be the host's and not exist here: then the mounted root is our own group.
        parts = Path(group.lstrip("/")).parts
        folders += [top.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]
    return [folder for folder in folders if folder.is_dir()]


def _group_use_bytes(folder: Path) -> int:
    """Bytes charged to the group, less the page cache that the kernel gives back on demand."""
    used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
    reclaimable = 0
    try:
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                reclaimable = max(reclaimable, int(value))
    except (OSError, ValueError):
        pass
    return max(0, used - reclaimable)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text().strip())
    except (OSError, ValueError):
        return None


def space(path: Path, mounts: Path = Path("/proc/mounts")) -> Space:
    """The file system that `path` is on, or will be on once it is made (its nearest existing parent's)."""
    existing = Path(path).absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    usage = shutil.disk_usage(existing)
    mount, kind = _mount_of(existing.resolve(), mounts)
    return Space(path=str(path), mount=mount, kind=kind, total_bytes=usage.total, free_bytes=usage.free)


def _mount_of(path: Path, mounts: Path) -> tuple[str, str]:
    """The longest mount point above `path`, and its kind; of two on the same point the later one is seen."""
    best = ("", "unknown")
    try:
        entries = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return best
    for entry in entries:
        fields = entry.split()
        if len(fields) < 3:
            continue
        # /proc/mounts writes a space in a path as \040.
        point = fields[1].replace("\\040", " ").replace("\\011", "\t")
        if path.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, fields[2])
    return best


def shared_memory() -> Space | None:
    """/dev/shm, or None where the system has none (macOS)."""
    folder = Path("/dev/shm")
    return space(folder) if folder.is_dir() else None


def limit(name: str) -> int | None:
    """A soft resource limit such as 'RLIMIT_MEMLOCK', in bytes or files; None when it is unlimited."""
    import resource

    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else soft


def port_is_free(port: int) -> bool:
    """Whether a server could listen on `port` of this machine now; 0 asks for any."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
        return True


def gpus() -> Gpus:
    """What NVML says; never raises, so that a machine without a driver is a fact and not an error."""
    try:
        import pynvml
    except ImportError:
        return Gpus(problem="nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Gpus(problem=f"no NVIDIA driver answers ({error})")
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        found = tuple(_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
        return Gpus(driver=driver, gpus=found)
    except pynvml.NVMLError as error:
        return Gpus(problem=f"the NVIDIA driver answers with an error ({error})")
    finally:
        pynvml.nvmlShutdown()


def _gpu(pynvml, index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    try:
        processes = tuple(p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except pynvml.NVMLError:
        processes = ()
    return Gpu(
        index=index,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        total_bytes=memory.total,
        free_bytes=memory.free,
        capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        process_ids=tuple(pid for pid in processes if pid != os.getpid()),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
