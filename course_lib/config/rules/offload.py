"""offload_param, offload_optimizer and aio: offloads that do not happen, keys without effect, NVMe paths."""

from pathlib import Path
from typing import Any

from course_lib.config.facts import Facts
from course_lib.config.findings import Finding, delete, found, set_to
from course_lib.config.installed import deepspeed_version
from course_lib.config.tree import get

ZERO = "zero_optimization"

NVME_ONLY = {
    "offload_param": ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu"),
    "offload_optimizer": ("nvme_path", "buffer_count", "pipeline_read", "pipeline_write", "fast_init"),
}
"""Keys that only the swapping to NVMe reads (runtime/swap_tensor, stage3.py)."""
STAGE_3_ONLY = ("ratio", "super_offload", "cpuadam_cores_perc")
"""Keys of offload_optimizer that only the stage-3 optimizer reads."""
LEAST_STAGE = {"offload_param": 3, "offload_optimizer": 1}

NETWORK_FILE_SYSTEMS = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs"),
        *("ceph", "lustre", "gpfs", "beegfs", "glusterfs", "pvfs2", "orangefs", "wekafs"),
        *("fuse.sshfs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.goofys"),
    )
)
"""Types as /proc/mounts names them."""


NETWORK_NAMES = frozenset(("nfs", "efs", "fsx", "lustre", "gpfs", "beegfs", "ceph", "cephfs", "gcsfuse", "s3fs", "smb"))
"""Folder names that say it, for paths of a node that is not this machine."""


def offload_findings(facts: Facts) -> list[Finding]:
    findings: list[Finding] = []
    for block in NVME_ONLY:
        written = get(facts.written, f"{ZERO}.{block}", None)
        if isinstance(written, dict):
            findings += _block(facts, block, written)
    return findings + _aio(facts)


def _block(facts: Facts, block: str, written: dict) -> list[Finding]:
    dotted, device = f"{ZERO}.{block}", facts.device(block)
    if "device" not in written:
        text = "no device is given and the default is none: nothing is offloaded"
        fix = f"Set {dotted}.device to cpu, or delete the block"
        return [found("no_effect_offload", "warning", dotted, text, fix, delete(dotted))]
    if device == "none" and written["device"] == "auto" and facts.framework == "trainer":
        text = "accelerate replaces this 'auto' by none: nothing is offloaded"
        fix = "Write cpu, nvme or none"
        return [found("no_effect_offload", "warning", f"{dotted}.device", text, fix, set_to(f"{dotted}.device", "cpu"))]
    if device == "none":
        inert = [key for key in written if key != "device" and facts.schema.known(dotted).get(key) != written[key]]
        text = "device is none: nothing is offloaded and nothing reads this"
        return [_note(f"{dotted}.{key}", text) for key in inert]
    if facts.stage < LEAST_STAGE[block]:
        text = f"DeepSpeed {deepspeed_version()} accepts it and offloads nothing: {block} works from stage "
        text += f"{LEAST_STAGE[block]}, this is stage {facts.stage}"
        fix = f"Use stage {LEAST_STAGE[block]}, or delete {block}"
        return [found("no_effect_offload", "error", dotted, text, fix, delete(dotted))]
    if device == "nvme":
        return _nvme(facts, block, dotted, written)
    findings = [
        _note(f"{dotted}.{key}", f"read only with device nvme; here it is {device}")
        for key in NVME_ONLY[block]
        if key in written and written[key] is not None
    ]
    return findings + _stage_three(facts, block, dotted, written)


def _nvme(facts: Facts, block: str, dotted: str, written: dict) -> list[Finding]:
    key = f"{dotted}.nvme_path"
    if block == "offload_optimizer" and facts.stage < 3:
        text = f"stages 1 and 2 offload to the CPU only; at stage {facts.stage} nothing goes to NVMe"
        fix = "Write cpu, or use stage 3"
        return [found("no_effect_offload", "error", f"{dotted}.device", text, fix, set_to(f"{dotted}.device", "cpu"))]
    path = written.get("nvme_path")
    if path in (None, "", "auto", "none"):
        text = "device is nvme and no path is given; DeepSpeed accepts this and raises when the model is partitioned"
        fix = "Set nvme_path to a folder on a local NVMe disk"
        return [found("nvme_path", "error", key, text, fix, set_to(f"{dotted}.device", "cpu"))]
    return _slow_place(key, Path(str(path)))


def _slow_place(key: str, path: Path) -> list[Finding]:
    """A path on a network file system or in memory; one that is not here is judged by its name."""
    kind = file_system_of(path)
    network = kind if kind in NETWORK_FILE_SYSTEMS else ""
    if not path.exists():
        network = network or next((part for part in path.parts if part.lower() in NETWORK_NAMES), "")
    if network:
        text = f"{path} is on a network file system ({network}): every parameter would cross the network each step"
        fix = "Use a local NVMe disk; several nodes need one each"
        return [found("network_file_system", "warning", key, text, fix)]
    if kind in ("tmpfs", "ramfs"):
        text = f"{path} is in memory ({kind}): this is offload to the CPU, the slow way"
        return [found("nvme_path", "warning", key, text, "Use a local NVMe disk, or device cpu")]
    return []


def _stage_three(facts: Facts, block: str, dotted: str, written: dict) -> list[Finding]:
    if block != "offload_optimizer":
        return []
    findings = []
    for key in STAGE_3_ONLY:
        if key in written and facts.stage < 3:
            asked = key == "super_offload" and written[key] is True
            text = f"read only at stage 3; this is stage {facts.stage}"
            level = "warning" if asked else "note"
            findings.append(
                found("no_effect", level, f"{dotted}.{key}", text, f"Delete {key}", delete(f"{dotted}.{key}"))
            )
    if facts.stage == 3 and "cpuadam_cores_perc" in written and written.get("super_offload") is not True:
        findings.append(_note(f"{dotted}.cpuadam_cores_perc", "read only with super_offload"))
    return findings


def _aio(facts: Facts) -> list[Finding]:
    if not isinstance(facts.written.get("aio"), dict) or facts.parsed is None:
        return []
    if "nvme" in (facts.device("offload_param"), facts.device("offload_optimizer")):
        return []
    return [_note("aio", "read only when something is offloaded to NVMe")]


def _note(key: str, text: str) -> Finding:
    return found("no_effect", "note", key, text, f"Delete {key.rpartition('.')[2]}", delete(key))


def file_system_of(path: Path, mounts: str | None = None) -> str:
    """Type of the file system that `path` is or would be on ("ext4", "nfs4"); "" where that cannot be told.

    Args:
        mounts: the text of /proc/mounts; read from there when not given.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text()
        except OSError:
            return ""
    best: tuple[int, Any] = (-1, "")
    target = path if path.is_absolute() else Path.cwd() / path
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        # /proc/mounts writes a blank in a name as \040.
        mount = Path(fields[1].replace("\\040", " "))
        if (target == mount or mount in target.parents) and len(mount.parts) >= best[0]:
            best = (len(mount.parts), fields[2])
    return best[1]
