"""Verdicts of a run that learns nothing: no_steps, labels_all_masked, nan_signature, early_stop_inactive."""

import re
import statistics

from course_lib.doctor.autopsy.events import Event, Line, Log
from course_lib.doctor.autopsy.findings import Finding, quote
from course_lib.doctor.autopsy.rows import is_bad, number

NO_SAMPLES = re.compile(
    r"not a single sample in your epoch_iterator|num_samples should be a positive integer|num_samples=0|"
    r"^\s*(?:\[[^\]]*\]\s*(?:>>\s*)?)?(?:Num examples|Total optimization steps) = 0\s*$|"
    r"global_step/max_steps['\"]?\s*: *['\"]?0/\d+|dataset is empty|"
    r"train_dataset.*\bempty\b|no (?:training )?samples? (?:left|found)|"
    r"(?:dataloader|train_dataloader|sampler) (?:has|with) (?:length )?(?:0|no) (?:batch|sample)|has no batch",
    re.I,
)
MASKED = re.compile(
    r"all (?:the )?labels (?:in (?:your|the) \w+ )?(?:are|were) (?:-100|masked|ignored)|labels are all (?:-100|masked)|"
    r"every label (?:is|was|in .*) (?:-100|masked)|no (?:un-?masked|supervised|valid) (?:labels?|tokens?)|"
    r"supervised[_ ]tokens?['\"]?\s*[:=]\s*0\b|0 supervised tokens|\b0 of \d+ tokens (?:are )?supervised|"
    r"(?:100(?:\.0+)? ?%) of (?:the )?(?:labels|tokens) (?:are )?(?:masked|-100|ignored)",
    re.I,
)
SUPERVISED = re.compile(r"supervised[_ ]tokens?['\"]?\s*[:=]\s*[1-9]|\b[1-9]\d* supervised tokens", re.I)
RESPONSE_KEY = re.compile(r"Could not find (?:response|instruction) key", re.I)
SCALE_AT_MINIMUM = re.compile(r"loss scale already at minimum|minimum loss scale reached", re.I)
MISSING_METRIC = re.compile(
    r"early stopping required metric_for_best_model, but did not find (\S+)|early stopping is (?:therefore )?disabled|"
    r"early.?stopp\w+.*(?:metric|monitor).*(?:not (?:found|available)|missing)",
    re.I,
)
NAN_ROWS = 2
PLATEAU_ROWS = 30
SAME = 1e-6


def detect_no_steps(log: Log) -> Finding | None:
    """Training ended before its first step, or said that it had nothing to step on."""
    lines = [line for line in log.notable if NO_SAMPLES.search(line.text)]
    summaries = [e for e in log.of("summary") if _is_empty_summary(e)]
    stepped = any((e.step or 0) > 0 for e in log.events if e.kind == "train" or e.phase == "train")
    if stepped or any(number(e.values.get("loss")) for e in log.train_rows):
        return None
    if not lines and not summaries:
        return None
    evidence = [quote(event.line) for event in summaries[:1]] + [quote(line) for line in lines[:3]]
    return Finding(verdict="no_steps", evidence=evidence, facts={"resumed": log.resumed_from})


def _is_empty_summary(event: Event) -> bool:
    """HF computes its samples per second from what was planned, so only the loss tells that nothing happened."""
    return number(event.values.get("train_loss")) == 0.0


def detect_masked(log: Log) -> Finding | None:
    """Nothing to learn from: loss 0 with gradient 0 from the first row on, loss nan without gradient, or said so."""
    said = [line for line in log.notable if MASKED.search(line.text)]
    if any(SUPERVISED.search(line.text) for line in log.notable):
        # Some batches have labels: a single one without is no reason to stop.
        said = [line for line in said if "upervised" not in line.text]
    rows = [row for row in log.train_rows if "loss" in row.values]
    keys = [line for line in log.notable if RESPONSE_KEY.search(line.text)]
    if any("reward" in name for row in rows[:5] for name in row.values):
        # Policy gradients start at loss 0 by construction.
        return None
    silent = bool(rows) and all(_is_silent(row) for row in rows)
    learns = any(_learns(row) for row in rows)
    if (not silent and not said) or (said and learns and not silent):
        return None
    evidence = [quote(line) for line in said[:2] + keys[:1]] + [quote(row.line) for row in rows[:2] if _is_silent(row)]
    return Finding(
        verdict="labels_all_masked",
        evidence=evidence,
        at_steps=[rows[0].step] if rows and rows[0].step is not None else [],
        facts={"template": bool(keys)},
    )


def _is_silent(row: Event) -> bool:
    loss, grad = number(row.values.get("loss")), number(row.values.get("grad_norm"))
    return (loss == 0.0 and grad in (0.0, None)) or (is_bad(loss) and grad == 0.0)


def _learns(row: Event) -> bool:
    loss, grad = number(row.values.get("loss")), number(row.values.get("grad_norm"))
    return bool(loss) and not is_bad(loss) and grad != 0.0


def detect_nan(log: Log) -> Finding | None:
    """Loss 0 with one constant gradient norm, or nan to the end; a skipped fp16 step that recovers is neither."""
    rows = [row for row in log.train_rows if "loss" in row.values or "grad_norm" in row.values]
    at_minimum = [line for line in log.notable if SCALE_AT_MINIMUM.search(line.text)]
    tail = _bad_tail(rows)
    constant = _constant_tail(rows)
    # One row of nan gradients beside a finite loss may still be a skipped step.
    certain = len(tail) >= NAN_ROWS or any(_has_no_loss(row) for row in tail)
    chosen = tail if certain else constant
    if not chosen and not at_minimum:
        return None
    kind = "nan" if chosen is tail and tail else ("loss_scale" if at_minimum and not chosen else "constant_grad_norm")
    steps = [row.step for row in chosen if row.step is not None]
    norm = number(chosen[0].values.get("grad_norm")) if chosen else None
    evidence = [quote(row.line) for row in [*chosen[:2], *chosen[2:][-1:]]] + [quote(line) for line in at_minimum[:1]]
    return Finding(
        verdict="nan_signature",
        cause=kind,
        evidence=evidence,
        at_steps=steps[:1],
        numbers={"rows": len(chosen)} | ({"grad_norm": norm} if norm is not None and not is_bad(norm) else {}),
        facts={"first": len(chosen) == len(rows)},
    )


def _has_no_loss(row: Event) -> bool:
    loss = number(row.values.get("loss"))
    return is_bad(loss) or loss == 0.0


def _bad_tail(rows: list[Event]) -> list[Event]:
    """The rows from which on, to the end, loss or gradient norm is not a number."""
    tail: list[Event] = []
    for row in reversed(rows):
        loss, grad = number(row.values.get("loss")), number(row.values.get("grad_norm"))
        # An infinite norm beside a finite loss is an fp16 overflow that the scaler skips.
        overflow = grad in (float("inf"), float("-inf")) and loss not in (None, 0.0) and not is_bad(loss)
        if overflow or not (is_bad(loss) or is_bad(grad)):
            break
        tail.append(row)
    return tail[::-1]


def _constant_tail(rows: list[Event]) -> list[Event]:
    """At least three last rows with loss exactly 0 and one and the same gradient norm above 0."""
    tail: list[Event] = []
    for row in reversed(rows):
        loss, grad = number(row.values.get("loss")), number(row.values.get("grad_norm"))
        if loss != 0.0 or not grad or is_bad(grad):
            break
        if tail and abs(grad - number(tail[0].values["grad_norm"])) > SAME * abs(grad):
            break
        tail.append(row)
    return tail[::-1] if len(tail) >= 3 else []


def flat_since(log: Log) -> int | None:
    """The step from which on the loss no longer falls: the last third's median is not below the middle third's.

    None with fewer than 30 rows (noise decides then), or when it falls by 1 % of the first rows' loss or more.
    """
    rows = [(row.step, number(row.values.get("loss"))) for row in log.train_rows]
    rows = [(step, loss) for step, loss in rows if step is not None and loss is not None and not is_bad(loss)]
    if len(rows) < PLATEAU_ROWS:
        return None
    third = len(rows) // 3
    first, middle, last = (statistics.median(loss for _, loss in rows[n * third : (n + 1) * third]) for n in range(3))
    return rows[third][0] if middle - last < 0.01 * abs(first) else None


def detect_early_stop(log: Log) -> Finding | None:
    """Early stopping that was asked for and cannot act before the run ends."""
    said = [line for line in log.notable if MISSING_METRIC.search(line.text)]
    patience = _positive(log.settings.get("early_stopping_patience"))
    if not said and patience is None:
        return None
    reason = "metric" if said else _why_inactive(log, patience)
    if reason is None:
        return None
    eval_steps, total = _positive(log.settings.get("eval_steps")), log.total_steps
    return Finding(
        verdict="early_stop_inactive",
        cause=reason,
        evidence=[quote(line) for line in said[:2]] + _settings_lines(log),
        numbers={k: v for k, v in (("patience", patience), ("eval_steps", eval_steps), ("max_steps", total)) if v},
        facts={
            "metric": _missing_name(said),
            "first_stop": (patience + 1) * eval_steps if patience and eval_steps else None,
        },
    )


def _missing_name(lines: list[Line]) -> str:
    names = [m[1] for line in lines if (m := MISSING_METRIC.search(line.text)) and m[1]]
    return names[0] if names else ""


def _why_inactive(log: Log, patience: float) -> str | None:
    eval_steps, total, last = _positive(log.settings.get("eval_steps")), log.total_steps, log.last_step
    evals = log.of("eval")
    if evals and log.settings.get("best_metric_never_set"):
        return "metric"
    metric = log.settings.get("metric_for_best_model")
    if evals and metric and not any(_has_metric(event, str(metric)) for event in evals):
        return "metric"
    if not evals and not eval_steps:
        return "no_eval" if "eval_steps" in log.settings or log.of("summary") else None
    if not evals and last is not None and eval_steps and last >= eval_steps + _logging_interval(log):
        return "no_eval"
    # The first evaluation sets the best value; only `patience` more of them without improvement stop the run.
    if eval_steps and total and (patience + 1) * eval_steps > total:
        return "too_late"
    return None


def _has_metric(event: Event, metric: str) -> bool:
    return metric in event.values or f"eval_{metric}" in event.values


def _logging_interval(log: Log) -> int:
    steps = sorted({e.step for e in log.events if e.step is not None and (e.kind == "train" or e.phase == "train")})
    return steps[-1] - steps[-2] if len(steps) > 1 else 1


def _positive(value: object) -> float | None:
    found = number(value)
    return (int(found) if found == int(found) else found) if found and found > 0 and not is_bad(found) else None


def _settings_lines(log: Log) -> list[str]:
    names = ("early_stopping_patience", "eval_steps", "max_steps", "metric_for_best_model")
    given = [f"{name} {log.settings[name]}" for name in names if log.settings.get(name) is not None]
    evals = log.of("eval")
    seen = f"{len(evals)} evaluations in the log" + (f", the last: {quote(evals[-1].line)}" if evals else "")
    return ([f"settings: {', '.join(given)}"] if given else []) + [seen]
