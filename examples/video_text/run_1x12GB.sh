#!/usr/bin/env bash
# One GPU of 12 GB. Options as in run.sh.
set -euo pipefail
here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run.sh" --config "$here/run_1x12GB.yaml" "$@"
