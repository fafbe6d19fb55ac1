"""A command with several seeds, each of them a job of SLURM, submitted and waited for through submitit.

    pip install submitit
    python seeds.py --seeds 5 --out runs/digits -- run --config digits --train.epochs 100

Runs are in runs/digits/0 to 4. A job that reaches its time limit or is preempted is queued again, and since commands
go on where they were stopped, it needs no state of its own. Code, images and runs must be on a disk that all nodes
share. `--cluster local` has the jobs run on this machine, without SLURM.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import submitit


class Command(submitit.helpers.Checkpointable):  # type: ignore[misc]
    """A command of nasformer, queued again as it is."""

    def __call__(self, words: list[str]) -> None:
        subprocess.run([sys.executable, "-m", "nasformer.cli", *words], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cluster", choices=("slurm", "local"), default="slurm")
    parser.add_argument("--hours", type=float, default=4.0, help="of a job, before it is queued again")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--cpus", type=int, default=8)
    parser.add_argument("command", nargs="+", help="after --: a command and its options, without --seed and --out")
    args = parser.parse_args()

    executor = submitit.AutoExecutor(args.out / "jobs", cluster=args.cluster, slurm_max_num_timeout=20)
    executor.update_parameters(
        name="nasformer", timeout_min=round(60 * args.hours), gpus_per_node=args.gpus, cpus_per_task=args.cpus
    )
    commands = [[*args.command, "--seed", str(seed), "--out", str(args.out / str(seed))] for seed in range(args.seeds)]
    for seed, job in enumerate(executor.map_array(Command(), commands)):
        job.result()  # raises what went wrong, with the end of the job's log
        print(f"seed {seed}: {args.out / str(seed)}")


if __name__ == "__main__":
    main()
