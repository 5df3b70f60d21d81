#!/usr/bin/env bash
# Two GPUs of 12 GB. Options as in run.sh.
set -euo pipefail
here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run.sh" --config "$here/run_2x12GB.yaml" "$@"
