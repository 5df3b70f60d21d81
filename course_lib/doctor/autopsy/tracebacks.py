"""Python tracebacks inside logs: whose frames belong to which error, and which phase of training they stand in."""

import re
from dataclasses import dataclass
from typing import Literal

from course_lib.doctor.autopsy.events import RANK_PREFIX, Line, Log

OomPhase = Literal["load", "init", "forward", "loss", "backward", "step", "eval", "save"]

# CPython's tracebacks and faulthandler's stacks; rich's boxes; IPython's.
FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)(?:,)? in (?P<function>[\w<>.]+)')
RICH_FRAME = re.compile(r"(?P<file>[\w./~-]+\.py):(?P<line>\d+)\s*in\s+(?P<function>[\w<>]+)")
IPYTHON_FRAME = re.compile(r"File (?P<file>\S+\.py):(?P<line>\d+), in (?:\w+\.)*(?P<function>[\w<>]+)\(")
LOOK_BACK_LINES = 400
LIBRARY = re.compile(r"site-packages|dist-packages|lib/python3|/torch/|/transformers/|/deepspeed/|/accelerate/|<frozen")


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """One level of a traceback; `code` is the source line below it when the log has it."""

    file: str
    line_number: int
    function: str
    code: str = ""

    @property
    def is_library(self) -> bool:
        return bool(LIBRARY.search(self.file))


def frames_before(log: Log, line: Line) -> list[Frame]:
    """Frames of the traceback that ends at `line`, outermost first, other ranks' lines left out."""
    source = next(s for s in log.sources if s.name == line.source) if log.sources else None
    if source is None:
        return []
    texts: list[str] = []
    for quoted in reversed(source.lines[max(0, line.number - 1 - LOOK_BACK_LINES) : line.number - 1]):
        prefix = RANK_PREFIX.match(quoted)
        rank = int(prefix[1] or prefix[2] or prefix[3]) if prefix else source.rank
        if rank != line.rank:
            continue
        text = quoted[prefix.end() :] if prefix else quoted
        if "most recent call" in text:
            break
        texts.append(text)
        if re.match(r"\S*(?:Error|Exception)\b.*:", text.strip()) and "raise" not in text:
            break
    texts.reverse()
    return _frames(texts)


def _frames(texts: list[str]) -> list[Frame]:
    frames = []
    texts = _unwrapped(texts)
    for position, text in enumerate(texts):
        match = _frame_in(text)
        if not match:
            continue
        code = _code_below(texts[position + 1 : position + 10])
        frames.append(Frame(file=match["file"], line_number=int(match["line"]), function=match["function"], code=code))
    return frames


def _frame_in(text: str) -> re.Match | None:
    return FRAME.search(text) or RICH_FRAME.search(text) or IPYTHON_FRAME.search(text)


def _unwrapped(texts: list[str]) -> list[str]:
    """Rich breaks long paths over two rows of its box, at any letter: put such rows together again."""
    joined: list[str] = []
    is_open = False
    for text in texts:
        row = text.strip()
        if not row.startswith("│"):
            joined.append(text)
            is_open = False
            continue
        content = row.strip("│").strip()
        is_code = re.match(r"(?:❱ *)?\d+ │", content) is not None
        if is_open and content and not is_code:
            joined[-1] += (" " if joined[-1].endswith(" in") else "") + content
        else:
            joined.append(content)
        is_open = bool(content) and not is_code and not RICH_FRAME.search(joined[-1])
    return joined


def _code_below(texts: list[str]) -> str:
    """The source line of a frame: the next line, or the one that rich or IPython marks with an arrow."""
    for text in texts:
        if _frame_in(text):
            break
        marked = re.match(r"\s*(?:❱|-+>) *\d+ *│?(.*)", text)
        if marked:
            return marked[1].strip(" │")
    first = texts[0].strip() if texts else ""
    return "" if _frame_in(first) or first.startswith(("│", "╰")) or re.match(r"\d+ ", first) else first


STEP_FILES = re.compile(
    r"torch/optim|deepspeed/(?:runtime|ops)|accelerate/(?:optimizer|utils)|bitsandbytes/optim|optimi[sz]er"
)

# In this order: the outer phases name themselves anywhere in the stack; forward is what remains.
FUNCTIONS: tuple[tuple[OomPhase, re.Pattern], ...] = (
    ("load", re.compile(
        r"from_pretrained|_?load_pretrained_model|load_state_dict|_load_state_dict\w*|caching_allocator_warmup|"
        r"load_checkpoint|_load_best_model|load_adapter|deepspeed_load_checkpoint|_move_model_to_device|load_model|"
        r"load_model_and_tokenizer|load_file|_load_parameter_into_model|convert_and_load_state_dict\w*|spawn_materialize|"
        r"_materialize_copy|_post_init_method|get_model_processor|get_model_tokenizer\w*|_load_from_checkpoint|safe_open")),
    ("init", re.compile(
        r"initialize|deepspeed_init|_configure_(?:optimizer|zero_optimizer|distributed_model|bf16_optimizer)|"
        r"_create_fp(?:16|32)_\w+|initialize_optimizer_states|_setup_for_real_optimizer|_prepare_deepspeed|prepare_model|"
        r"prepare|_ddp_init_helper|_sync_module_states|get_peft_model|inject_adapter|prepare_model_for_kbit_training|"
        r"_convert_to_zero_parameters|convert_to_zero_parameters|create_optimizer\w*|add_adapter")),
    ("eval", re.compile(
        r"evaluate|_evaluate|evaluation_loop|prediction_loop|prediction_step|predict|compute_metrics|generate|"
        r"preprocess_logits_for_metrics|nested_concat|torch_pad_and_concatenate|pad_across_processes|validation_step|validate|run_eval\w*|eval_step")),
    ("save", re.compile(
        r"save_pretrained|_?save_checkpoint|save_model|_save|save_state|save_16bit_model|save_fp16_model|save_file|"
        r"_?zero3_consolidated_\w+|_consolidated_\w+|get_state_dict|_get_fp32_state_dict\w*|merge_and_unload|"
        r"get_peft_model_state_dict|consolidate\w*|gather_state_dict|save_adapter\w*")),
    ("backward", re.compile(
        r"backward|_engine_run_backward|unpack_hook|recompute_fn|reduce_\w*grad\w*|"
        r"reduce_ready_partitions_and_remove_grads|_?_?reduce_and_partition_ipg_grads|backward_prologue")),
    ("loss", re.compile(
        r"\w*(?:CausalLM|Conditional\w*)Loss|fixed_cross_entropy|cross_entropy\w*|\w*loss_fn|loss_function|(?!compute_loss)\w*_loss|"
        r"log_softmax|selective_log_softmax|entropy_from_logits|nll_loss\w*|_upcast_logits")),
)  # fmt: skip
CODE: dict[OomPhase, re.Pattern] = {
    "load": re.compile(r"from_pretrained\(|load_checkpoint\("),
    "init": re.compile(r"deepspeed\.initialize\(|get_peft_model\(|accelerator\.prepare\("),
    "eval": re.compile(r"\bevaluate\(|\.predict\(|\.generate\("),
    "save": re.compile(r"save_pretrained\(|save_model\(|save_checkpoint\("),
}
STEP_FUNCTIONS = re.compile(
    r"step|_take_model_step|_optimizer_step|_step|optimizer_step|clip_grad_norm_|unscale_and_clip_grads|"
    r"_init_group|_multi_tensor_\w+|_fused_\w+|_single_tensor_\w+|_prepare_\w*sub_group\w*|adamw?|_reassign_or_swap_out_partitioned_parameters\w*"
)
LOSS_CODE = re.compile(
    r"logits\.float\(\)|logits\.to\(torch\.float|shift_logits|cross_entropy\(|log_softmax\(|\bloss_fct\(|CrossEntropyLoss|upcast"
)
MOVE = re.compile(r"\.cuda\(|\.to\((?:self\.)?(?:args\.)?(?:device|['\"]cuda)")


def phase_of(frames: list[Frame]) -> OomPhase | None:
    """The phase that a stack stands in; None when its frames say nothing."""
    if not frames:
        return None
    in_training_step = any(f.function == "training_step" for f in frames)
    for phase, pattern in FUNCTIONS[:4]:
        # Generating inside a training step (GRPO and its kind) is that step's forward.
        if phase == "eval" and in_training_step:
            continue
        if any(_speaks_of(phase, pattern, frame) for frame in frames):
            return phase
    if any(STEP_FUNCTIONS.fullmatch(f.function) and STEP_FILES.search(f.file) for f in frames) or any(
        re.search(r"optimizer\.step\(|engine\.step\(|model\.step\(|clip_grad_norm_\(", f.code) for f in frames
    ):
        return "step"
    if _matches("backward", frames) or any(re.search(r"\.backward\(", f.code) for f in frames):
        return "backward"
    if (_matches("loss", frames[-6:]) and not _is_inside_model(frames)) or LOSS_CODE.search(frames[-1].code):
        return "loss"
    if any(f.function in ("forward", "_call_impl", "_wrapped_call_impl", "__call__") for f in frames):
        return "forward"
    if any(MOVE.search(f.code) for f in frames):
        return "load"
    if any(f.function in ("training_step", "compute_loss") for f in frames):
        return "loss" if frames[-1].function == "compute_loss" and "model(" not in frames[-1].code else "forward"
    return None


def _matches(phase: OomPhase, frames: list[Frame]) -> bool:
    pattern = dict(FUNCTIONS)[phase]
    return any(pattern.fullmatch(frame.function) for frame in frames)


def _speaks_of(phase: OomPhase, pattern: re.Pattern, frame: Frame) -> bool:
    if CODE[phase].search(frame.code):
        return True
    if frame.function in ("prepare", "initialize"):
        # Many libraries have functions of these names; only these two make an engine there.
        return phase == "init" and re.search(r"accelerate|deepspeed", frame.file + frame.code) is not None
    return pattern.fullmatch(frame.function) is not None


def _is_inside_model(frames: list[Frame]) -> bool:
    """Whether the stack went on from compute_loss into the model's layers."""
    last_loss = max(i for i, f in enumerate(frames) if dict(FUNCTIONS)["loss"].fullmatch(f.function))
    return any(
        f.function in ("forward", "_call_impl") and "loss" not in f.file.lower() for f in frames[last_loss + 1 :]
    )
