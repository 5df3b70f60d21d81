#!/usr/bin/env bash
#SBATCH --job-name=video_text
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --output=slurm-%j.log
# One node under SLURM, same entry: cd examples/video_text && sbatch run_slurm.sh [options of run.sh].
# Options of sbatch win over the lines above: sbatch --gpus-per-node=2 run_slurm.sh
set -euo pipefail
# SLURM runs a copy of this file from its spool folder; the folder that sbatch was called in has the others.
here="${SLURM_SUBMIT_DIR:-$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)}"
if [[ ! -f "$here/run.sh" ]]; then
  printf 'run_slurm.sh: no run.sh in %s. Call sbatch in examples/video_text\n' "$here" >&2
  exit 2
fi
arguments=(--yes)
# A job that SLURM put back in the queue goes on where it stopped.
if ((${SLURM_RESTART_COUNT:-0} > 0)); then
  arguments+=(--resume)
fi
exec "$here/run.sh" "${arguments[@]}" "$@"
