"""A plan beside the installed library's own answer to the same question."""

from dataclasses import dataclass

from course_lib.errors import CourseError
from course_lib.tokens import judge
from course_lib.tokens.plan import TokenPlan, processor_metadata


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """What the library says. `equal` is None where no installed library implements the family's rule."""

    by: str
    equal: bool | None
    thw: tuple[int, int, int] | None = None
    visual_tokens: int | None = None
    difference: str = ""
    """What differs, in one sentence; empty when equal."""


def check_plan(plan: TokenPlan, *, height: int, width: int, duration_seconds: float) -> Check:
    """Ask the real processor, with exactly the arguments that the plan says to pass, about a clip of this size.

    Args:
        height, width: of the frames before the resize.
    Raises CourseError when the library refuses what the plan passes.
    """
    model = plan.model
    if not model.family.checked:
        return Check(by=f"nobody: {model.family.title} has no processor in transformers", equal=None)
    by = f"transformers {judge.library_version()} {model.family.processor}"
    try:
        answer = judge.ask(
            model, judge.build_processor(model), frames=plan.frames, height=height, width=width,
            metadata=processor_metadata(plan.frame_seconds, duration_seconds), **plan.call,
        )  # fmt: skip
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CourseError(f"{by} refuses the planned settings: {first}") from error
    wrong = []
    if answer.thw is not None and answer.thw != plan.grid.thw:
        wrong.append(f"grid {list(answer.thw)}, planned {list(plan.grid.thw)}")
    if answer.visual_tokens != plan.visual_tokens:
        wrong.append(f"{answer.visual_tokens} visual tokens, planned {plan.visual_tokens}")
    if any(label not in answer.text for label in plan.text.labels):
        wrong.append("other timestamps or labels")
    return Check(
        by=by, equal=not wrong, thw=answer.thw, visual_tokens=answer.visual_tokens, difference="; ".join(wrong)
    )
