"""Bytes are integers; GiB (2**30) and GB (10**9) exist only in what is shown, and are always named."""

KIB = 1024
MIB = 1024**2
GIB = 1024**3
GB = 10**9


def ceil_div(value: int, divisor: int) -> int:
    """Smallest integer not below value / divisor. Raises ValueError for a divisor below 1."""
    if divisor < 1:
        raise ValueError(f"divisor must be at least 1, got {divisor}")
    return -(-value // divisor)


def gib(value_bytes: float, digits: int = 2) -> str:
    """Bytes as binary gibibytes, the unit of torch and nvidia-smi: gib(2**31) == '2.00 GiB'."""
    return f"{value_bytes / GIB:.{digits}f} GiB"


def gb(value_bytes: float, digits: int = 2) -> str:
    """Bytes as decimal gigabytes, the unit of papers and disks: gb(2e9) == '2.00 GB'."""
    return f"{value_bytes / GB:.{digits}f} GB"


def human_bytes(value_bytes: float) -> str:
    """Bytes in the largest binary unit that keeps the number at 1 or above."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(value_bytes) >= size:
            return f"{value_bytes / size:.2f} {unit}"
    return f"{int(value_bytes)} B"


def human_seconds(seconds: float) -> str:
    """Seconds as a person says them: '48 s', '12 min 30 s', '3 h 05 min'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
