"""Do the decoded images fit into memory, or must they be streamed?"""

from __future__ import annotations

import os
from pathlib import Path

import torch

SHARE = 0.5  # of what is free now; the rest is for training

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def fits(needed: int, device: torch.device, world: int = 1) -> bool:
    """Whether so many bytes may live on the host, once for each of `world` processes, and on the device."""
    if needed * world > SHARE * free_memory():
        return False
    return device.type != "cuda" or needed <= SHARE * torch.cuda.mem_get_info(device)[0]


def free_memory() -> int:
    """Bytes that this machine, or the container on it, can still give."""
    return min(_free_in_machine(), _free_in_container())


def _free_in_machine() -> int:
    if MEMINFO.exists():
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # no telling: half of what there is


def _free_in_container() -> int:
    try:
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no cgroup v2, or no limit in it
        return 2**62
    return limit - used + int(counts.get("inactive_file", 0))  # cached files give way
