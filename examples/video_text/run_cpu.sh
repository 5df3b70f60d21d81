#!/usr/bin/env bash
# Two CPU ranks, also on a machine that has GPUs. Options as in run.sh.
set -euo pipefail
export CUDA_VISIBLE_DEVICES=""
here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run.sh" "$@"
