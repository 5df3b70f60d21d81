"""The loss on supervised positions is transformers' own loss, with fewer logits."""

import pytest
import torch
from torch import nn

from course_lib.models.supervised_loss import IGNORED, supervised_loss, supervised_positions

TOLERANCE = 1e-6


def tiny_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        # A scale at which a wrong loss would be far from a right one.
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def text_batch():
    """Two rows of 11 and 7 tokens, right-padded; the last 4 and 2 of each are to be learnt."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 97, (2, 11), generator=generator)
    mask, labels = torch.ones_like(ids), torch.full_like(ids, IGNORED)
    ids[1, 7:], mask[1, 7:] = 0, 0
    labels[0, 7:], labels[1, 5:7] = ids[0, 7:], ids[1, 5:7]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def video_batch(processor, example_folder):
    """Two windows of two clips with answers of different lengths."""
    from course_lib.config.run_config import BudgetSection
    from course_lib.data.grounding import GroundingDataset, collate
    from course_lib.data.windows import Window

    events = (((0.5, 1.5), (3.0, 7.5)), ())
    windows = [
        Window(
            video=example_folder / "data" / "clips" / f"train_00{number}.mp4",
            question="Which parts are worth keeping?",
            start_seconds=8.0,
            end_seconds=16.0,
            events=events[number],
            index=number,
        )
        for number in range(2)
    ]
    budget = BudgetSection(frames=16, max_tokens_per_frame=1, min_tokens_per_frame=1)
    dataset = GroundingDataset(windows, processor, budget)
    batch = collate([dataset[0], dataset[1]], processor.tokenizer.pad_token_id)
    dataset.reader.close()
    batch.pop("sample_index")
    assert len({int(row.sum()) for row in batch["attention_mask"]}) == 2
    return batch


@pytest.fixture(scope="module")
def two_windows(tiny_processor, example_folder):
    return video_batch(tiny_processor, example_folder)


@pytest.fixture(params=["llama", "qwen3-vl"])
def model_and_batch(request):
    if request.param == "llama":
        return tiny_llama(), text_batch()
    return request.getfixturevalue("tiny_model").eval(), dict(request.getfixturevalue("two_windows"))


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("num_items_in_batch", [None, 37])
def test_loss_and_every_gradient_are_those_of_transformers(model_and_batch, num_items_in_batch):
    model, batch = model_and_batch
    own = model(**batch, num_items_in_batch=num_items_in_batch).loss
    theirs = gradients(model, own)
    loss, _ = supervised_loss(model, batch, num_items_in_batch)
    ours = gradients(model, loss)
    torch.testing.assert_close(loss, own, rtol=TOLERANCE, atol=0)
    assert ours.keys() == theirs.keys()
    scale = max(gradient.abs().max().item() for gradient in theirs.values())
    for name, gradient in theirs.items():
        assert (ours[name] - gradient).abs().max() <= TOLERANCE * scale, name


def test_logits_exist_only_where_a_label_stands(model_and_batch):
    model, batch = model_and_batch
    _, outputs = supervised_loss(model, batch)
    columns = set((batch["labels"][:, 1:] != IGNORED).nonzero()[:, 1].tolist())
    assert outputs.logits.shape == (2, len(columns), model.get_output_embeddings().weight.shape[0])
    assert len(columns) < batch["labels"].shape[1]
    assert "labels" in batch, "the caller's batch is left as it was"


def test_the_mean_is_over_labels_and_not_over_positions_or_rows():
    model, batch = tiny_llama(), text_batch()
    mean, _ = supervised_loss(model, batch)
    total, _ = supervised_loss(model, batch, 1)
    torch.testing.assert_close(mean * 6, total)


def test_a_label_in_the_first_place_predicts_nothing():
    labels = torch.tensor([[5, IGNORED, IGNORED, 7]])
    assert supervised_positions(labels).tolist() == [2]


def test_positions_are_shared_by_the_rows_and_ascend():
    labels = torch.full((2, 8), IGNORED)
    labels[0, 6], labels[1, 2] = 1, 1
    assert supervised_positions(labels).tolist() == [1, 5]


def test_a_batch_without_a_label_is_refused_before_the_model_is_called():
    class Never(nn.Module):
        def forward(self, **_):
            raise AssertionError("the model was called")

    with pytest.raises(ValueError, match="every label is -100"):
        supervised_loss(Never(), {"labels": torch.full((2, 4), IGNORED)})


def test_bf16_logits_are_summed_in_fp32():
    model, batch = tiny_llama().to(torch.bfloat16), text_batch()
    loss, outputs = supervised_loss(model, batch)
    assert outputs.logits.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
