"""The first-step check passes what LoRA does and stops what it never does."""

import pytest
import torch
from torch import nn

from course_lib.errors import FINDING, CourseError
from course_lib.train.first_step import FirstStepCheck


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q_proj, self.v_proj = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return self.v_proj(torch.tanh(self.q_proj(x)))


def with_lora(init_lora_weights=True):
    import peft

    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=init_lora_weights)
    return peft.get_peft_model(Two(), config)


class Run:
    """Backward, check and update, as a trainer does them."""

    def __init__(self, model):
        self.model, self.said, self.updates = model, [], 0
        self.check = FirstStepCheck(model, self.said.append)
        self.optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)

    def step(self, rate, scale=1.0):
        x = torch.arange(12.0).view(2, 6) / 12
        self.optimizer.zero_grad()
        (self.model(x).pow(2).mean() * scale).backward()
        self.check.after_backward(self.updates)
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        self.updates += rate > 0


def refusal(run, **named):
    with pytest.raises(CourseError) as caught:
        run.step(0.1, **named)
    assert caught.value.exit_code == FINDING
    line = caught.value.line()
    assert "\n" not in line
    assert line.startswith("first step: ")
    return line


def test_lora_as_peft_makes_it_passes_at_the_second_step_and_says_so_once():
    run = Run(with_lora())
    run.step(0.1)
    assert not run.check.finished
    run.step(0.1)
    assert run.check.finished
    run.step(0.1)
    assert len(run.said) == 1
    assert "2 lora_A gradients exactly zero" in run.said[0]
    assert "all 4 adapter gradients" in run.said[0]


def test_a_warm_up_that_starts_at_zero_only_moves_the_moment():
    run = Run(with_lora())
    for _ in range(3):
        run.step(0.0)
        assert not run.check.finished
    run.step(0.1)
    assert not run.check.finished
    run.step(0.1)
    assert run.check.finished


def test_the_hooks_are_gone_when_it_has_passed():
    run = Run(with_lora())
    run.step(0.1)
    run.step(0.1)
    run.model(torch.ones(1, 6)).sum().backward()
    assert run.check._largest == {}


def test_lora_b_random_at_the_start_is_refused():
    line = refusal(Run(with_lora(init_lora_weights=False)))
    assert "lora_A has a gradient before the first update" in line
    assert "init_lora_weights" in line
    assert "q_proj.lora_A" in line


def test_a_and_b_both_zero_are_refused_and_the_cause_is_named():
    model = with_lora()
    for name, p in model.named_parameters():
        if ".lora_A." in name:
            p.data.zero_()
    line = refusal(Run(model))
    assert "lora_B has no gradient" in line
    assert "lora_A is not zero too" in line


def test_a_loss_that_depends_on_nothing_is_refused():
    line = refusal(Run(with_lora()), scale=0.0)
    assert "lora_B has no gradient" in line
    assert "labels are not all -100" in line


def test_a_backward_that_never_reaches_the_adapters_is_refused():
    run = Run(with_lora())
    with pytest.raises(CourseError, match="lora_B has no gradient"):
        run.check.after_backward(0)


def test_one_adapter_without_a_gradient_among_many_is_named():
    model = with_lora()
    for name, p in model.named_parameters():
        if "v_proj.lora_A." in name:
            p.data.zero_()
    line = refusal(Run(model))
    assert "v_proj.lora_B" in line
    assert "q_proj.lora_B" not in line


def test_an_optimizer_that_does_not_move_lora_b_is_refused():
    run = Run(with_lora())
    run.optimizer = torch.optim.SGD([p for n, p in run.model.named_parameters() if ".lora_A." in n], lr=1.0)
    run.step(0.1)
    line = refusal(run)
    assert "lora_A has no gradient after the first update" in line


def test_a_model_without_lora_is_refused():
    with pytest.raises(CourseError, match="no trainable LoRA parameter"):
        FirstStepCheck(Two(), print)
