"""Label checks on the shipped template and on tokenizers of other kinds: each fault has its own finding."""

from pathlib import Path

import numpy as np
import pytest

from course_lib.config.run_config import BudgetSection
from course_lib.data.grounding import GroundingDataset, answer_text, collate, render_prompt
from course_lib.data.labels import CODES, check_labels, placeholder_ids, written_seconds
from course_lib.data.windows import Window
from course_lib.models.supervised_loss import IGNORED

ANSWER = "1.5-3.0, 5.0-7.5"
SECONDS = [0.25 + 0.5 * k for k in range(16)]
STEPS = [(SECONDS[k] + SECONDS[k + 1]) / 2 for k in range(0, 16, 2)]


@pytest.fixture(scope="module")
def dataset(tiny_processor):
    return GroundingDataset(
        [], tiny_processor, BudgetSection(frames=16, max_tokens_per_frame=1, min_tokens_per_frame=1)
    )


def build(dataset, *, events=((1.5, 3.0), (5.0, 7.5)), question="Which parts are worth keeping?", seconds=SECONDS):
    window = Window(
        video=Path("clip.mp4"), question=question, start_seconds=0.0, end_seconds=8.0, events=events, index=0
    )
    return dataset.build(window, np.zeros((16, 64, 64, 3), dtype=np.uint8), seconds)


@pytest.fixture
def item(dataset):
    return build(dataset)


@pytest.fixture
def codes(tiny_processor):
    def check(item, **named):
        settings = {"answer": ANSWER, "step_seconds": STEPS, "attention_mask": item.get("attention_mask")} | named
        found = check_labels(
            item["input_ids"], item["labels"], tiny_processor.tokenizer,
            visual_token_ids=placeholder_ids(tiny_processor), **settings,
        )  # fmt: skip
        for finding in found:
            assert finding.what
            assert finding.fix
            assert "\n" not in finding.line()
        return [finding.code for finding in found]

    return check


def test_what_the_course_builds_has_no_finding(item, codes):
    assert codes(item) == []
    assert codes(item, answer=None) == []


@pytest.mark.parametrize("events", [(), ((0.0, 8.0),), tuple((k + 0.1, k + 0.6) for k in range(8))])
def test_any_answer_of_the_course_is_right(dataset, codes, events):
    built = build(dataset, events=events)
    answer = Window(video=Path(), question="", start_seconds=0, end_seconds=8, events=events, index=0).answer
    assert codes(built, answer=answer) == []


def test_padding_on_either_side_changes_nothing(dataset, codes, tiny_processor):
    import torch

    items = [build(dataset) | {"index": 0}, build(dataset, question="Keep? " * 30) | {"index": 1}]
    batch = collate(items, tiny_processor.tokenizer.pad_token_id)
    rows = [{name: batch[name][row] for name in ("input_ids", "labels", "attention_mask")} for row in (0, 1)]
    assert [codes(row) for row in rows] == [[], []]
    assert codes({**rows[0], "attention_mask": None}) == []
    turned = {name: torch.roll(values, len(values) - len(items[0]["input_ids"])) for name, values in rows[0].items()}
    assert turned["attention_mask"][0] == 0
    assert codes(turned) == []


def supervise(item, places):
    item["labels"][places] = item["input_ids"][places]


def test_a_masked_part_of_the_answer_is_found(item, codes):
    item["labels"][item["prompt_tokens"] + 2] = IGNORED
    assert codes(item) == ["answer_not_supervised"]


def test_an_end_that_is_not_learnt_is_found(item, codes):
    item["labels"][-1] = IGNORED
    assert codes(item) == ["eos_not_supervised"]
    assert codes(item, answer=None) == ["eos_not_supervised"]


def test_an_end_that_is_not_there_is_found(item, codes):
    cut = {name: item[name][:-1] for name in ("input_ids", "labels", "attention_mask")}
    assert codes(cut) == ["eos_missing"]
    assert codes(cut, answer=None) == ["eos_missing"]


def test_the_users_turn_and_template_tokens_are_found(item, codes):
    supervise(item, slice(item["prompt_tokens"] - 2, item["prompt_tokens"]))
    assert codes(item) == ["prompt_supervised"]


def test_placeholders_with_labels_are_found(item, codes, tiny_processor):
    supervise(item, item["input_ids"] == tiny_processor.video_token_id)
    assert codes(item) == ["visual_supervised"]
    assert codes(item, answer=None) == ["visual_supervised"]


def test_labels_equal_to_the_inputs_are_one_finding(item, codes):
    item["labels"] = item["input_ids"].clone()
    assert codes(item) == ["labels_equal_inputs"]
    assert codes(item, answer=None) == ["labels_equal_inputs"]


def test_labels_equal_to_the_inputs_but_for_the_pads_are_found(item, codes, tiny_processor):
    item["labels"] = item["input_ids"].clone()
    item["labels"][item["input_ids"] == tiny_processor.video_token_id] = IGNORED
    assert codes(item) == ["prompt_supervised"]


def test_nothing_learnt_is_found(item, codes):
    item["labels"][:] = IGNORED
    assert codes(item) == ["all_ignored"]
    assert codes(item, answer=None) == ["all_ignored"]


def test_a_truncated_answer_is_found_and_counted(item, codes, tiny_processor):
    cut = {name: item[name][:-5] for name in ("input_ids", "labels", "attention_mask")}
    assert codes(cut) == ["answer_truncated"]
    found = check_labels(cut["input_ids"], cut["labels"], tiny_processor.tokenizer, answer=ANSWER)
    whole = len(tiny_processor.tokenizer(ANSWER)["input_ids"])
    assert f"only {whole - 4} of the answer's {whole}" in found[0].what


def test_an_answer_in_the_question_does_not_count(dataset, codes):
    built = build(dataset, question=f"Is it {ANSWER}")
    built["labels"][:] = IGNORED
    start = next(
        at for at in range(built["prompt_tokens"])
        if built["input_ids"][at:].tolist()[:4] == built["input_ids"][built["prompt_tokens"] :].tolist()[:4]
    )  # fmt: skip
    supervise(built, slice(start, start + 16))
    assert codes(built) == ["answer_not_supervised", "eos_not_supervised", "prompt_supervised"]
    cut = {name: built[name][: built["prompt_tokens"]] for name in ("input_ids", "labels", "attention_mask")}
    assert codes(cut) == ["answer_missing"]


def test_another_answer_is_found_even_if_it_ends_alike(dataset, codes):
    assert codes(build(dataset, events=((1.5, 3.0),))) == ["answer_missing"]
    assert codes(build(dataset, events=((1.5, 3.0),)), answer="5-3.0") == ["answer_missing"]
    assert codes(build(dataset, events=()), answer="one") == ["answer_missing"]


def test_shifted_labels_are_found(item, codes):
    import torch

    item["labels"][item["prompt_tokens"] :] = torch.roll(item["labels"][item["prompt_tokens"] :], 1)
    assert codes(item) == ["labels_differ_from_ids"]


def test_a_sample_over_the_limit_is_found(item, codes):
    length = len(item["input_ids"])
    assert codes(item, max_tokens=length) == []
    assert codes(item, max_tokens=length - 1) == ["over_length"]


def test_masks_of_other_lengths_are_one_finding(item, codes):
    assert codes({**item, "labels": item["labels"][:-1]}) == ["length_mismatch"]


def test_times_of_the_source_video_are_found(dataset, codes, tiny_processor):
    shifted = build(dataset, seconds=[second + 4.0 for second in SECONDS])
    assert codes(shifted) == ["timestamps_wrong"]
    found = check_labels(
        shifted["input_ids"], shifted["labels"], tiny_processor.tokenizer, step_seconds=STEPS,
        visual_token_ids=placeholder_ids(tiny_processor),
    )  # fmt: skip
    assert "all 8 times are off by about +4.0 s" in found[0].what


def test_one_wrong_time_is_found_and_rounding_is_not(dataset, codes):
    assert codes(build(dataset, seconds=[second + 0.04 for second in SECONDS])) == []
    assert codes(build(dataset, seconds=[*SECONDS[:-2], 7.95, 7.99])) == ["timestamps_wrong"]
    # 8 frames at 2 fps are four seconds, not eight: index / assumed rate instead of real times.
    assert codes(build(dataset, seconds=[second / 2 for second in SECONDS])) == ["timestamps_wrong"]


def test_missing_times_are_found(item, codes):
    assert codes(item, step_seconds=STEPS[:-1]) == ["timestamps_missing"]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("<1.3 seconds>", (1.3, 0.05)),
        ("at 4.0 s? <12.0 seconds>", (12.0, 0.05)),
        ("\nFrame from 01:05:", (65.0, 1.0)),
        (" 1:00:02 ", (3602.0, 1.0)),
        ("Second7", (7.0, 1.0)),
        ("<7 seconds>", (7.0, 1.0)),
        ("no time", None),
    ],
)
def test_times_are_read_as_families_write_them(text, read):
    assert written_seconds(text) == read


def word_tokenizer(*, pad="<pad>", eos="</s>", template=None):
    """Another kind of tokenizer: merges with the space before a word, one token for pad and end when asked."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=sorted({pad, eos, "<video>"}),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    core.train_from_iterator([" keep the red part", "the red part", "none", "Answer: none\n\n"] * 9, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token=pad, eos_token=eos)
    tokenizer.chat_template = template
    return tokenizer


def encode(tokenizer, prompt, answer, end="</s>", pads=0):
    """A sample as most scripts build it: one text, the prompt's length masked, padded to the right."""
    ids = tokenizer(prompt + answer + end)["input_ids"]
    start = next(n for n in range(len(ids)) if len(tokenizer.decode(ids[: n + 1])) > len(prompt))
    labels = [IGNORED] * start + ids[start:]
    mask = [1] * len(ids) + [0] * pads
    return ids + [tokenizer.pad_token_id] * pads, labels + [IGNORED] * pads, mask


def found(tokenizer, ids, labels, mask=None, **named):
    return [f.code for f in check_labels(ids, labels, tokenizer, attention_mask=mask, **named)]


@pytest.mark.parametrize("prompt", ["USER: the red part? ASSISTANT: ", "Answer:", "Answer:\n\n", "[/INST] "])
@pytest.mark.parametrize("answer", ["the red part", "none", " keep", "1.5-3.0", "ein Fuß läuft"])
def test_answers_whose_tokens_merge_with_the_prompt_are_still_found(prompt, answer):
    tokenizer = word_tokenizer()
    ids, labels, mask = encode(tokenizer, prompt, answer, pads=3)
    assert found(tokenizer, ids, labels, mask, answer=answer) == []
    assert found(tokenizer, ids, labels, answer=answer) == []
    labels[len(ids) - 5] = IGNORED
    assert found(tokenizer, ids, labels, mask, answer=answer) == ["answer_not_supervised"]


def test_padding_that_is_the_end_token_hides_it():
    tokenizer = word_tokenizer(pad="</s>")
    ids, labels, mask = encode(tokenizer, "Answer: ", "none", pads=4)
    assert found(tokenizer, ids, labels, mask, answer="none") == []
    assert found(tokenizer, ids, labels, answer="none") == []
    hidden = [IGNORED if token == tokenizer.pad_token_id else label for token, label in zip(ids, labels, strict=True)]
    by_id = [int(token != tokenizer.pad_token_id) for token in ids]
    for attention in (mask, by_id, None):
        assert found(tokenizer, ids, hidden, attention, answer="none") == ["pad_hides_eos"]
    assert found(tokenizer, ids, hidden, mask) == ["pad_hides_eos"]


def test_labels_on_padding_are_found():
    tokenizer = word_tokenizer()
    ids, labels, mask = encode(tokenizer, "Answer: ", "none", pads=4)
    labels[-2:] = ids[-2:]
    assert found(tokenizer, ids, labels, mask, answer="none") == ["padding_supervised"]


def test_a_line_break_after_the_end_is_found_when_it_is_learnt():
    tokenizer = word_tokenizer()
    ids, labels, mask = encode(tokenizer, "Answer: ", "none", end="</s>\n")
    assert found(tokenizer, ids, labels, mask, answer="none") == ["tail_supervised"]
    labels[-1] = IGNORED
    assert found(tokenizer, ids, labels, mask, answer="none") == []


TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"
MARKED = (
    "{% for m in messages %}{{ m['role'] }}: {% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}</s>"
    "{% endgeneration %}{% else %}{{ m['content'] }}</s>{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(("template", "expected"), [(TEMPLATE, ["assistant_mask_empty"]), (MARKED, [])])
def test_a_template_without_a_generation_block_marks_nothing(template, expected):
    tokenizer = word_tokenizer(template=template)
    messages = [{"role": "user", "content": "the red part?"}, {"role": "assistant", "content": "none"}]
    encoded = tokenizer.apply_chat_template(
        messages, return_dict=True, return_assistant_tokens_mask=True, tokenize=True
    )
    ids, mask = encoded["input_ids"], encoded["assistant_masks"]
    labels = [token if kept else IGNORED for token, kept in zip(ids, mask, strict=True)]
    assert found(tokenizer, ids, labels, answer="none", assistant_mask=mask) == expected


def test_every_code_is_met_by_a_test():
    text = Path(__file__).read_text()
    assert [code for code in CODES if f'"{code}"' not in text] == []


def test_the_prompt_is_the_templates_own(tiny_processor, item):
    text = render_prompt(tiny_processor, "Which parts are worth keeping?") + answer_text(tiny_processor, ANSWER)
    assert text.endswith(f"assistant\n{ANSWER}<|im_end|>")
    assert item["labels"].tolist()[-1] == tiny_processor.tokenizer.eos_token_id


def test_the_page_explains_every_code():
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    assert [code for code, meaning in CODES.items() if f"| `{code}` | {meaning} |" not in page] == []
