"""What to do about a finding: one piece of advice first, then what helps when that does not."""

from collections.abc import Callable

from course_lib.doctor.autopsy.events import Log
from course_lib.doctor.autopsy.findings import Finding
from course_lib.units import human_seconds


def advice_for(finding: Finding, log: Log) -> list[str]:
    """Advice in the order in which to try it."""
    if finding.verdict == "oom_gpu":
        from course_lib.doctor.autopsy.advice_memory import oom_advice

        return oom_advice(finding)
    return WRITERS[finding.verdict](finding, log)


def _oom_host(finding: Finding, log: Log) -> list[str]:
    if finding.cause == "pinned_memory":
        return [
            "Pinned host memory ran out: set pin_memory: false under offload_optimizer and offload_param, or raise "
            "the memlock limit (ulimit -l unlimited)",
            "torch rounds every pinned allocation up to a power of two: DS_PIN_MEMORY_BACKEND=native avoids that",
        ]
    first = {
        "load": "Host RAM ran out while weights were loaded: create the DeepSpeed config (TrainingArguments) before "
        "from_pretrained, so that only one rank holds the whole checkpoint in RAM",
        "init": "Host RAM ran out while optimizer states or offloaded parameters were laid out: offload less "
        "(offload_optimizer takes 18 bytes per trainable parameter), or use more ranks or nodes",
        "save": "Host RAM ran out while weights were gathered for saving: save the adapter alone, or the sharded "
        "checkpoint, and gather in a fresh process",
        "eval": "Host RAM ran out in evaluation: keep predictions off the list (prediction_loss_only, or "
        "preprocess_logits_for_metrics with argmax)",
    }.get(
        finding.phase or "",
        "Host RAM ran out: fewer data-loader workers, less offloading, or a machine with more RAM per rank",
    )
    kernel = "Exit code -9 is SIGKILL; was it the kernel, for lack of RAM? See: dmesg -T | grep -i 'killed process'"
    return [
        first,
        *([] if finding.facts.get("said_so") else [kernel]),
        "Look at the limit of the container or job too: a control group may allow less RAM than the machine has",
    ]


def _shm(finding: Finding, log: Log) -> list[str]:
    return [
        "/dev/shm is too small (exit code -7 is a bus error: a write to shared memory that was not there): start "
        "the container with --shm-size=16g or --ipc=host, or mount -o remount,size=16G /dev/shm",
        "Until then: num_workers 0 in the data loader, and NCCL_SHM_DISABLE=1",
    ]


def _disk(finding: Finding, log: Log) -> list[str]:
    where = f" ({', '.join(finding.facts['paths'])})" if finding.facts.get("paths") else ""
    if finding.facts.get("quota"):
        return [f"The disk quota is used up{where}: delete old checkpoints or write to another file system"]
    return [
        f"The disk is full{where}: delete old checkpoints and set save_total_limit; the last whole checkpoint is the "
        "one before the error",
        "Save adapters alone (megabytes); a ZeRO checkpoint holds optimizer states as well",
        "Other ranks that then wait in a barrier end with a time limit: that is an echo of the full disk",
    ]


def _damaged(finding: Finding, log: Log) -> list[str]:
    if finding.facts.get("lfs"):
        return ["The file is a git-lfs pointer, not weights: run git lfs pull, or fetch the file itself"]
    files = f" ({', '.join(finding.facts['files'])})" if finding.facts.get("files") else ""
    if finding.facts.get("empty"):
        return [
            f"The checkpoint holds empty tensors{files}: it was saved on rank 0 alone under ZeRO-3. Save again with "
            "every rank taking part (consolidate first, then write on rank 0)",
            "An older whole checkpoint is the way to go on",
        ]
    return [
        f"The checkpoint is damaged{files}: it was truncated while it was written or downloaded. Remove it and "
        "resume from the previous checkpoint, or download it again",
        "Compare the file's size with the original, and write checkpoints under a temporary name that is renamed "
        "when whole",
    ]


def _mismatch(finding: Finding, log: Log) -> list[str]:
    since = f" since step {finding.facts['step']}" if finding.facts.get("step") is not None else ""
    odd = finding.facts.get("odd") or []
    who = f"rank {', '.join(map(str, odd))} went another way than the rest" if odd else "the ranks went different ways"
    first = (
        f"Ranks {', '.join(map(str, finding.ranks))} wait in different collectives{since}: {who}. Evaluation, saving "
        "and generating must run on every rank: under ZeRO-3 each forward gathers weights from all of them"
    )
    return [
        first,
        "Look for `if rank == 0:` (or is_main_process) around evaluate, generate, save or a progress-bar condition, "
        "and move it so that it guards only the printing and the writing",
        "Otherwise: batches of different kinds per rank (a missing modality, an unused expert), or a rank with "
        "fewer batches",
    ]


def _timeout(finding: Finding, log: Log) -> list[str]:
    since = f" since step {finding.facts['step']}" if finding.facts.get("step") is not None else ""
    if finding.facts.get("missing"):
        named = ", ".join(map(str, finding.facts["missing"]))
        first = f"Rank {named} did not arrive at the barrier{since}: look at that rank's own log first"
    elif finding.facts.get("one_rank"):
        first = (
            f"Only rank {finding.ranks[0]} reports the time limit{since}: look at the logs of the others; one of "
            "them is slow, stuck in Python, or gone"
        )
    else:
        first = (
            f"All reporting ranks wait in the same collective{since}: somebody came late (a slow evaluation, save or "
            "data load on one rank), or the network between them fails"
        )
    return [
        first,
        "If the work is slow on purpose (a long save), raise the limit: ddp_timeout in TrainingArguments (seconds), "
        "DEEPSPEED_TIMEOUT (minutes)",
        "Network: run with NCCL_DEBUG=INFO, try NCCL_P2P_DISABLE=1 (PCIe access control) and the right "
        "NCCL_SOCKET_IFNAME",
    ]


def _died(finding: Finding, log: Log) -> list[str]:
    who = f"Rank {finding.ranks[0]}" if finding.ranks else "A process"
    end, raised = finding.facts.get("end"), finding.facts.get("exception")
    texts = {
        "exception": [f"{who} raised an error and the others were ended: fix this first: {raised or end}"],
        "segfault": [
            f"{who} crashed in native code ({end}): run it again with PYTHONFAULTHANDLER=1 to see where; suspect a "
            "compiled extension (flash-attn, decord, a DeepSpeed operator) built for another torch"
        ],
        "abort": [
            f"{who} aborted ({end}): the line just above it says why (a failed check in C++ or CUDA); "
            "CUDA_LAUNCH_BLOCKING=1 makes it name the right operation"
        ],
        "terminated": [
            f"{who} was told to stop ({end}): a scheduler, a preempted node or a person; resume from the last "
            "checkpoint"
        ],
        "time_limit": ["The scheduler ended the job at its time limit: ask for more, or save more often and resume"],
        "interrupted": ["Somebody stopped the run (Ctrl-C): resume from the last checkpoint"],
        "killed": [
            f"{who} was killed ({end}) while host memory was low in use: a person or a scheduler, not the kernel for "
            "lack of RAM"
        ],
        "connection_lost": [
            f"{who} went away without a word and its peers lost the connection: look at the end of its own log and "
            "at dmesg (killed for lack of RAM?)"
        ],
    }
    first = texts.get(finding.cause, [f"{who} ended ({end}): look at the last lines of its own log"])
    return [*first, "The other ranks' errors (SIGTERM, -15, connection closed) follow from it"]


def _no_steps(finding: Finding, log: Log) -> list[str]:
    resumed = finding.facts.get("resumed")
    if resumed and resumed >= (log.total_steps or resumed + 1):
        return [
            f"The checkpoint is at step {resumed} already and max_steps is {log.total_steps}: there was nothing left "
            "to do on any rank; raise max_steps to train on more samples",
        ]
    return [
        "Training ended before its first step: a rank got no batch. There must be at least one sample per rank and "
        "micro batch (samples >= world_size x micro batch), else the sampler with drop_last leaves nothing",
        "Count the samples after filtering (length, missing files, empty labels), and print len(train_dataloader) "
        "on every rank",
        "To try the path alone, repeat one sample world_size times (smoke mode)",
    ]


def _masked(finding: Finding, log: Log) -> list[str]:
    template = (
        ["The template's response marker is not in the text: print one decoded sample and compare it letter by letter"]
        if finding.facts.get("template")
        else []
    )
    return [
        "Every label is -100, so there is nothing to learn from: print one sample's supervised tokens "
        "(labels[labels != -100]) before training",
        *template,
        "Usual causes: the answer was cut off by the maximum length (video tokens come first), the chat template "
        "has no generation block (assistant mask all zero), or the response marker does not match the tokenizer's",
    ]


def _nan(finding: Finding, log: Log) -> list[str]:
    if finding.cause == "constant_grad_norm":
        return [
            "Loss exactly 0 with one constant gradient norm is a buffer of NaNs, not learning: set overlap_comm: "
            "false (with contiguous_gradients and small buckets it can reduce a bucket that is still being filled), "
            "and start again from a checkpoint before this",
            "If you keep overlap_comm, raise reduce_bucket_size well above the largest gradient",
            "Check one step without DeepSpeed: if the loss is finite there, the data and the model are fine",
        ]
    return [
        "The loss is not a number any more: go back to the last checkpoint before it, lower the learning rate, and "
        "use bf16 instead of fp16",
        "If it was so from the first step: a batch without a supervised token (0/0), weights that were not loaded, "
        "or overlap_comm with small buckets (set overlap_comm: false)",
        "torch.autograd.set_detect_anomaly(True) names the operation that made it",
    ]


def _stalled(finding: Finding, log: Log) -> list[str]:
    each = human_seconds(finding.facts["each_seconds"])
    if not finding.cause:
        return [
            f"The run pauses about {each} at a time where no save or eval is due: look at the data (a slow or remote "
            "file system, a video that decodes for minutes) and at other users of the machine",
        ]
    return [
        f"Each save and eval ({finding.cause} here) stops all ranks for about {each}: do both less often "
        "(save_steps, eval_steps), and measure them apart",
        "save: write adapters alone, not optimizer states and whole weights; keep save_total_limit small; write to "
        "a local disk",
        "eval: fewer samples, prediction_loss_only, a larger eval batch; generate only at the end",
    ]


def _straggler(finding: Finding, log: Log) -> list[str]:
    rank, ratio, name = finding.ranks[0], finding.numbers["ratio"], finding.facts["name"]
    fact = (
        f"Rank {rank} is slow: it takes {ratio:.1f} times as long as the others ({name})"
        if finding.facts["works"]
        else f"The others wait for rank {rank}, which hardly waits itself ({name})"
    )
    return [
        f"{fact}; all ranks go at its pace: look at that GPU's clock and temperature (nvidia-smi -q -d "
        "CLOCK,TEMPERATURE) and at other processes on it",
        "If it is another rank every time, the batches are uneven: sort or pack by length",
        "Also: its CPU threads (OMP_NUM_THREADS, NUMA binding) and its disk",
    ]


def _clock(finding: Finding, log: Log) -> list[str]:
    return [
        "The clock of the log jumped (time set by NTP, a suspended machine, a time zone or two logs in one file): "
        "do not trust seconds per step across it",
        "Measure durations with a monotonic clock (time.monotonic), not with the time of day",
    ]


def _early_stop(finding: Finding, log: Log) -> list[str]:
    numbers, facts = finding.numbers, finding.facts
    if finding.cause == "metric":
        name = facts.get("metric") or log.settings.get("metric_for_best_model") or "the metric"
        return [
            f"Early stopping is off: {name} is not among the numbers that evaluation reports. Set "
            "metric_for_best_model to one of them (eval_loss), and label_names so that the loss is computed in "
            "evaluation",
            "transformers only warns and goes on: treat that warning as an error",
        ]
    if finding.cause == "no_eval":
        return [
            "Early stopping never acts because evaluation never happens: set eval_strategy: steps, eval_steps, and "
            "an evaluation set",
        ]
    return [
        f"Early stopping cannot act: with early_stopping_patience {numbers['patience']} and eval_steps "
        f"{numbers['eval_steps']} it could stop at step {facts['first_stop']} at the earliest, and the run ends at "
        f"{numbers['max_steps']}. Lower the patience or evaluate more often",
    ]


def _healthy(finding: Finding, log: Log) -> list[str]:
    return ["Nothing stands out"]


def _unknown(finding: Finding, log: Log) -> list[str]:
    return [
        "This is no training log that the doctor can read: give it the run's folder, or the file with the rank's output"
    ]


WRITERS: dict[str, Callable[[Finding, Log], list[str]]] = {
    "oom_host": _oom_host,
    "shm_too_small": _shm,
    "disk_full": _disk,
    "checkpoint_damaged": _damaged,
    "collective_mismatch": _mismatch,
    "collective_timeout": _timeout,
    "rank_died": _died,
    "no_steps": _no_steps,
    "labels_all_masked": _masked,
    "nan_signature": _nan,
    "stalled": _stalled,
    "straggler": _straggler,
    "clock_jump": _clock,
    "early_stop_inactive": _early_stop,
    "healthy": _healthy,
    "unknown": _unknown,
}
