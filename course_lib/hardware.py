"""GPUs and nodes by name, each figure with its source, and what this machine really has.

Memory is what the driver shows (MiB of nvidia-smi), not what the box says. Bandwidths are vendors' peak figures.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.errors import CourseError, did_you_mean
from course_lib.units import GB, GIB, MIB, gib

CONTEXT_BYTES = int(1.7 * GIB)
"""Card use beyond what torch reserves, one process: measured on an H200 (context, cuBLAS and cuDNN kernels)."""
NCCL_BYTES = int(1.25 * GIB)
"""NCCL after the first collective: 1 to 1.5 GiB (DeepSpeed runs; no measurement of ours)."""
PROCESS_BYTES = 4 * GIB
"""A Python process with torch, transformers and DeepSpeed: 2 GiB measured on an H200 node, more with data loaded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One kind of accelerator."""

    name: str
    memory_bytes: int
    """What the driver reports as total."""
    bandwidth_bytes_per_second: int
    """Device memory, peak."""
    link: str
    """How GPUs of one node reach each other, with the per-GPU bandwidth in both directions."""
    bf16_flops: int
    """Dense bf16 with fp32 accumulation, peak."""
    capability: int
    """Major compute capability; 0 for AMD."""
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """Several GPUs of one kind with host memory and disk."""

    name: str
    gpu: Gpu
    gpus: int
    ram_bytes: int
    disk_bytes: int
    note: str = ""

    def verdict(self, report: Any) -> dict[str, Any]:
        """Whether a MemoryReport fits: its reserved peak at the upper end of its bar, with context and NCCL.

        `report` has peak_reserved_bytes, host_bytes and error_bar.high (memory.report.MemoryReport).
        """
        needed = int(report.peak_reserved_bytes * (1 + report.error_bar.high)) + CONTEXT_BYTES
        needed += NCCL_BYTES if self.gpus > 1 else 0
        # Blocks that are reserved but free can be given back; what is allocated cannot.
        floor = (
            int(report.peak_allocated_bytes * (1 + report.error_bar.high))
            + needed
            - int(report.peak_reserved_bytes * (1 + report.error_bar.high))
        )
        host = (report.host_bytes + PROCESS_BYTES) * self.gpus
        card = self.gpu.memory_bytes
        fits = floor <= card and host <= self.ram_bytes
        tight = fits and needed > card
        margin = card - floor
        words = "fits" if fits and not tight else "fits, tightly" if fits else "does not fit"
        line = (
            f"{self.name}: {words}: {gib(floor)} to {gib(needed)} of {gib(card)} per GPU, "
            f"{gib(host)} of {gib(self.ram_bytes)} host RAM"
        )
        return {
            "node": self.name,
            "fits": fits,
            "tight": tight,
            "needed_bytes": needed,
            "at_least_bytes": floor,
            "card_bytes": card,
            "margin_bytes": margin,
            "host_bytes": host,
            "host_limit_bytes": self.ram_bytes,
            "line": line,
        }


def _gpu(name: str, mib: int, gb_per_second: float, link: str, bf16_tflops: float, capability: int, source: str) -> Gpu:
    return Gpu(
        name=name,
        memory_bytes=mib * MIB,
        bandwidth_bytes_per_second=int(gb_per_second * GB),
        link=link,
        bf16_flops=int(bf16_tflops * 1e12),
        capability=capability,
        source=source,
    )


PCIE4 = "PCIe 4.0 x16, 64 GB/s"
PCIE5 = "PCIe 5.0 x16, 128 GB/s"

GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("RTX3060-12GB", 12288, 360, PCIE4, 25.5, 8, "NVIDIA Ampere GA102 whitepaper and product page; 12288 MiB"),
        _gpu("RTX3090", 24576, 936, "NVLink bridge 112 GB/s", 71, 8, "NVIDIA Ampere GA102 whitepaper; 24576 MiB"),
        _gpu("RTX4090", 24564, 1008, PCIE4, 165, 8, "NVIDIA Ada whitepaper; nvidia-smi shows 24564 MiB"),
        _gpu("RTX5090", 32607, 1792, PCIE5, 209, 12, "NVIDIA Blackwell RTX whitepaper; nvidia-smi shows 32607 MiB"),
        _gpu("L4", 23034, 300, PCIE4, 121, 8, "NVIDIA L4 datasheet; nvidia-smi shows 23034 MiB (ECC)"),
        _gpu("L40S", 46068, 864, PCIE4, 362, 8, "NVIDIA L40S datasheet; nvidia-smi shows 46068 MiB (ECC)"),
        _gpu("A10", 23028, 600, PCIE4, 125, 8, "NVIDIA A10 datasheet; nvidia-smi shows 23028 MiB (ECC)"),
        _gpu("A40", 46068, 696, "NVLink bridge 112 GB/s", 150, 8, "NVIDIA A40 datasheet; 46068 MiB (ECC)"),
        _gpu("A100-40GB", 40960, 1555, "NVLink 3, 600 GB/s", 312, 8, "NVIDIA A100 datasheet; 40960 MiB"),
        _gpu("A100-80GB", 81920, 2039, "NVLink 3, 600 GB/s", 312, 8, "NVIDIA A100 datasheet; 81920 MiB"),
        _gpu("H100", 81559, 3350, "NVLink 4, 900 GB/s", 989, 9, "NVIDIA H100 SXM datasheet; 81559 MiB"),
        _gpu("H200", 143771, 4800, "NVLink 4, 900 GB/s", 989, 9, "NVIDIA H200 datasheet; 143771 MiB read on an H200"),
        # 192 GB of HBM3e are on the package; DGX and HGX B200 list 180 GB per GPU as usable, and that is what counts.
        _gpu("B200", 183359, 8000, "NVLink 5, 1800 GB/s", 2250, 10, "NVIDIA HGX B200 page: 180 GB usable; 183359 MiB"),
        _gpu("MI300X", 196288, 5300, "Infinity Fabric, 896 GB/s", 1307, 0, "AMD MI300X datasheet: 192 GB HBM3"),
    )
}

ALIASES = {
    "3060": "RTX3060-12GB",
    "rtx3060": "RTX3060-12GB",
    "12gb": "RTX3060-12GB",
    "3090": "RTX3090",
    "4090": "RTX4090",
    "5090": "RTX5090",
    "a100": "A100-80GB",
    "a100-80": "A100-80GB",
    "a100-40": "A100-40GB",
    "h100-80gb": "H100",
}

HOST = {"2xB200": (2000 * GB, 15_000 * GB), "8xB200": (4000 * GB, 30_000 * GB), "8xH100": (2000 * GB, 30_000 * GB)}
"""RAM and disk of nodes as rented; other nodes are given 128 GB of RAM per data-centre GPU, 64 GB in all otherwise."""


def find_gpu(name: str) -> Gpu:
    """A GPU of the catalogue. Raises CourseError with the nearest names."""
    wanted = name.strip().lower().replace(" ", "").replace("_", "-")
    wanted = re.sub(r"^(nvidia|geforce|amd)-?", "", wanted)
    for known, gpu in GPUS.items():
        if wanted == known.lower():
            return gpu
    if wanted in ALIASES:
        return GPUS[ALIASES[wanted]]
    raise CourseError(f"unknown GPU '{name}'", fix=did_you_mean(name, [*GPUS, *ALIASES]))


def find_node(name: str) -> Node:
    """A node by name: `COUNTxGPU` (2xB200, 4xA100-80GB), a GPU alone, or `this` for this machine."""
    if name == "this":
        return this_machine()
    match = re.fullmatch(r"(\d+)\s*[x×]\s*(.+)", name.strip())
    count, gpu_name = (int(match[1]), match[2]) if match else (1, name)
    if count < 1:
        raise CourseError(f"a node needs at least one GPU, got '{name}'")
    gpu = find_gpu(gpu_name)
    canonical = f"{count}x{gpu.name}"
    consumer = gpu.name.startswith("RTX")
    ram, disk = HOST.get(canonical, (64 * GB if consumer else 128 * GB * count, 1000 * GB * (1 if consumer else count)))
    note = "" if canonical in HOST else "RAM and disk are assumed, not read"
    return Node(name=canonical, gpu=gpu, gpus=count, ram_bytes=ram, disk_bytes=disk, note=note)


def this_machine() -> Node:
    """The GPUs NVML sees here and the RAM a process may use. Raises CourseError without an NVIDIA GPU."""
    import shutil

    gpus = _nvml_gpus()
    if not gpus:
        raise CourseError("no NVIDIA GPU is visible here", fix="Name a node, such as 2xB200 or 1xRTX3060-12GB")
    first, memory, capability = gpus[0]
    try:
        known = find_gpu(first.removeprefix("NVIDIA ").replace(" ", ""))
    except CourseError:
        known = None
    gpu = Gpu(
        name=first,
        memory_bytes=memory,
        bandwidth_bytes_per_second=known.bandwidth_bytes_per_second if known else 0,
        link=known.link if known else "unknown",
        bf16_flops=known.bf16_flops if known else 0,
        capability=capability,
        source="NVML on this machine",
    )
    return Node(
        name=f"{len(gpus)}x{first} (this machine)",
        gpu=gpu,
        gpus=len(gpus),
        ram_bytes=usable_ram_bytes(),
        disk_bytes=shutil.disk_usage(Path.cwd()).free,
    )


def usable_ram_bytes() -> int:
    """RAM that a process here may use: the least of MemTotal and the cgroup limits (v2 `memory.max`, v1 limit)."""
    import psutil

    limits = [psutil.virtual_memory().total]
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return min(limits)


def _nvml_gpus() -> list[tuple[str, int, int]]:
    """(name, total bytes, major capability) of each GPU; empty where there is no driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - no package, no driver, no permission: all mean no GPU here
        return []
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        name = pynvml.nvmlDeviceGetName(handle)
        total = pynvml.nvmlDeviceGetMemoryInfo(handle).total
        found.append((str(name), int(total), pynvml.nvmlDeviceGetCudaComputeCapability(handle)[0]))
    pynvml.nvmlShutdown()
    return found
