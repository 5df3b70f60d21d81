#!/usr/bin/env bash
# One entry for every machine: sees what it runs on, picks the run config, checks, trains, keeps the log.
set -euo pipefail

here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"

usage() {
  cat <<'TEXT'
run.sh [--config FILE] [--dry-run] [--yes] [--skip-preflight] [--resume] [-- extra arguments for course train]

  --config FILE      run config; without it: run_4x12GB.yaml from 4 GPUs on, run_2x12GB.yaml from 2,
                     run_1x12GB.yaml for 1, run_cpu.yaml (two CPU ranks) without a GPU
  --dry-run          print the resolved command and configs, run the preflight, start nothing
  --yes              do not ask before starting
  --skip-preflight   start although course preflight was not asked
  --resume           go on from the last checkpoint in the run folder

Environment: HF_HOME, MODEL_DIR, OUT (each with its default, printed when used); CUDA_VISIBLE_DEVICES is respected.
Exit code: that of course train; 1 when the preflight found something, 2 for wrong usage.
Takes about: see README.md, where each time says whether it was measured or predicted.
TEXT
}

stop() {
  printf 'run.sh: %s\n' "$1" >&2
  exit 2
}

# GPUs that this process may use: what nvidia-smi lists, at most as many as CUDA_VISIBLE_DEVICES names.
gpu_count() {
  local listed count named=0 entry entries=()
  listed="$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null)" || listed=""
  count="$(grep -cE '^[0-9]+$' <<<"$listed" || true)"
  if [[ -n "${CUDA_VISIBLE_DEVICES+set}" ]]; then
    IFS=', ' read -ra entries <<<"$CUDA_VISIBLE_DEVICES"
    for entry in ${entries[@]+"${entries[@]}"}; do
      # CUDA stops reading at -1.
      [[ "$entry" == -1 ]] && break
      named=$((named + 1))
    done
    if ((named < count)); then count="$named"; fi
  fi
  printf '%s' "$count"
}

# The value of a top-level key of a run config.
config_value() {
  sed -n "/^$1:/{s/^$1:[[:space:]]*//;s/[[:space:]]#.*\$//;s/[[:space:]]*\$//;s/^[\"']//;s/[\"']\$//;p;q;}" "$2"
}

absolute() {
  case "$1" in
    /*) printf '%s' "$1" ;;
    *) printf '%s/%s' "$2" "$1" ;;
  esac
}

config="" dry_run=false yes=false preflight=true
train_arguments=()
while (($# > 0)); do
  case "$1" in
    --config)
      (($# > 1)) || stop "--config needs a file"
      config="$(absolute "$2" "$PWD")"
      shift
      ;;
    --dry-run) dry_run=true ;;
    --yes) yes=true ;;
    --skip-preflight) preflight=false ;;
    --resume) train_arguments+=(--resume) ;;
    -h | --help)
      usage
      exit 0
      ;;
    --)
      shift
      train_arguments+=("$@")
      break
      ;;
    *) stop "unknown option '$1'. See run.sh --help; arguments for course train stand after --" ;;
  esac
  shift
done

course="$here/../../.venv/bin/course"
if [[ ! -x "$course" ]]; then
  course="$(command -v course)" || stop "no 'course' in .venv or on the PATH. Run 'make demo' in the repository first"
fi

if [[ -z "$config" ]]; then
  gpus="$(gpu_count)"
  case "$gpus" in
    0) config="$here/run_cpu.yaml" ;;
    1) config="$here/run_1x12GB.yaml" ;;
    2 | 3) config="$here/run_2x12GB.yaml" ;;
    *) config="$here/run_4x12GB.yaml" ;;
  esac
  printf 'GPUs to use: %s -> %s\n' "$gpus" "${config##*/}"
fi
[[ -f "$config" ]] || stop "run config $config is missing"
config_folder="$(cd -- "$(dirname -- "$config")" && pwd)"

overrides=()
if [[ -n "${OUT:-}" ]]; then
  out="$(absolute "$OUT" "$PWD")"
  overrides+=(--set "output=$out")
  printf 'OUT=%s (from the environment)\n' "$out"
else
  out="$(config_value output "$config")"
  [[ -n "$out" ]] || stop "$config has no 'output:'. Add it, or set OUT"
  out="$(absolute "$out" "$config_folder")"
  printf 'OUT=%s (default, from the run config)\n' "$out"
fi
if [[ -n "${MODEL_DIR:-}" ]]; then
  overrides+=(--set "model=$(absolute "$MODEL_DIR" "$PWD")")
  printf 'MODEL_DIR=%s (from the environment)\n' "$(absolute "$MODEL_DIR" "$PWD")"
else
  printf 'MODEL_DIR=%s (default, from the run config)\n' "$(config_value model "$config")"
fi
if [[ -n "${HF_HOME:-}" ]]; then
  printf 'HF_HOME=%s (from the environment)\n' "$HF_HOME"
else
  export HF_HOME="${HOME:-$here}/.cache/huggingface"
  printf 'HF_HOME=%s (default)\n' "$HF_HOME"
fi

command=("$course" train "$config" ${overrides[@]+"${overrides[@]}"} ${train_arguments[@]+"${train_arguments[@]}"})
log="$out/run.log"
printf 'Command:'
printf ' %q' "${command[@]}"
printf '\nLog: %s\n' "$log"

if "$dry_run"; then
  printf '\n# %s\n' "$config"
  cat -- "$config"
  ds_config="$(absolute "$(config_value ds_config "$config")" "$config_folder")"
  [[ -f "$ds_config" ]] || stop "ds_config $ds_config, named in $config, is missing"
  printf '\n# %s\n' "$ds_config"
  cat -- "$ds_config"
fi

if "$preflight"; then
  status=0
  "$course" preflight "$config" ${overrides[@]+"${overrides[@]}"} || status=$?
  if ((status != 0)); then
    printf 'run.sh: preflight ended with %s. Mend what it found, or use --skip-preflight\n' "$status" >&2
    exit "$status"
  fi
fi
if "$dry_run"; then
  printf 'Dry run: nothing was started.\n'
  exit 0
fi

if ! "$yes"; then
  [[ -t 0 ]] || stop "nobody to ask before starting (no terminal). Use --yes"
  read -r -p "Start? [y/N] " reply
  [[ "$reply" == [yY]* ]] || stop "not started"
fi

mkdir -p -- "$out" || stop "cannot make the run folder $out"
# The exit code of the training, not of tee; tee outlives Ctrl-C (-i) so that the last lines are kept.
set +e
"${command[@]}" 2>&1 | tee -i -a -- "$log"
exit "${PIPESTATUS[0]}"
