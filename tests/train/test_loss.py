from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tiny
from nasformer.errors import UserError
from nasformer.models.storage import save_model
from nasformer.supernet.supernet import Supernet
from nasformer.train.loop import train_supernet
from nasformer.train.loss import Answers, Teacher, feature_difference, load_teacher, soft_cross_entropy

LOGITS = torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.0, 0.0]])
TARGETS = torch.tensor([[0.7, 0.2, 0.1], [0.0, 0.0, 1.0]])
CPU = torch.device("cpu")


class Says(nn.Module):
    """A teacher of fixed opinions, in training mode and with a gradient to begin with."""

    def __init__(self, classes: list[int]) -> None:
        super().__init__()
        self.opinions = nn.Parameter(torch.eye(3)[classes])

    def forward(self, images: Tensor) -> Tensor:
        assert not self.training
        return self.opinions


def by_hand(logits: list[list[float]], targets: list[list[float]]) -> float:
    """The mean of -sum(target * log softmax)."""
    total = 0.0
    for row, target in zip(logits, targets, strict=True):
        norm = math.log(sum(math.exp(value) for value in row))
        total -= sum(t * (value - norm) for t, value in zip(target, row, strict=True))
    return total / len(logits)


def test_soft_cross_entropy() -> None:
    found = soft_cross_entropy(LOGITS, torch.empty(0), TARGETS)
    assert found.item() == pytest.approx(by_hand(LOGITS.tolist(), TARGETS.tolist()), rel=1e-6)
    assert soft_cross_entropy(LOGITS.bfloat16(), torch.empty(0), TARGETS).dtype == torch.float32


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_a_teacher_adds_its_top_class_as_a_smoothed_hard_label(weight: float) -> None:
    teacher = Teacher(Says([2, 0]), Answers(weight, hard=True, smoothing=0.1))
    small, large = 0.1 / 3, 0.9 + 0.1 / 3
    labels = [[small, small, large], [large, small, small]]
    taught, plain = by_hand(LOGITS.tolist(), labels), by_hand(LOGITS.tolist(), TARGETS.tolist())
    found = soft_cross_entropy(LOGITS, torch.empty(0), teacher(torch.empty(0), TARGETS).targets)
    assert found.item() == pytest.approx((1 - weight) * plain + weight * taught, rel=1e-6)


def test_a_soft_teacher_gives_its_probabilities() -> None:
    model = Says([2, 0])
    found = Teacher(model, Answers(0.25))(torch.empty(0), TARGETS).targets
    assert torch.allclose(found, 0.75 * TARGETS + 0.25 * model(torch.empty(0)).softmax(-1))


def test_a_teacher_is_not_trained() -> None:
    teacher, logits = Says([2, 0]), LOGITS.clone().requires_grad_()
    soft_cross_entropy(logits, torch.empty(0), Teacher(teacher)(torch.empty(0), TARGETS).targets).backward()
    assert logits.grad is not None
    assert teacher.opinions.grad is None


def test_features_of_a_teacher_are_learned() -> None:
    """A student with the teacher's own weights differs in nothing; another one comes nearer by training."""
    supernet = Supernet(tiny.SPACE)
    teacher = supernet.extract(tiny.SPACE.root.largest())
    images, outputs = torch.randn(4, 1, 8, 8), dict[str, Tensor]()
    lesson = Teacher(teacher, depths=4)(images, torch.eye(10)[:4])
    supernet.eval()(images, tiny.SPACE.root.largest(), outputs=outputs)
    assert list(lesson.features)[-1] == teacher.segment_names[-2]
    assert feature_difference(outputs, lesson.features).item() == pytest.approx(0, abs=1e-9)
    assert [len(part.targets) for part in lesson.chunk(2)] == [2, 2]
    assert all(len(feature) == 2 for part in lesson.chunk(2) for feature in part.features.values())

    def distance(weight: float) -> float:
        student, recipe = Supernet(tiny.SPACE, seed=1), tiny.recipe(iterations=30, lr=4e-3, teacher_features=weight)
        train_supernet(student, tiny.DATA, recipe, teacher=teacher, quiet=True)
        found = dict[str, Tensor]()
        student.eval()(images, tiny.SPACE.root.largest(), outputs=found)
        return feature_difference(found, lesson.features).item()

    assert distance(10.0) < 0.8 * distance(0.0)


def test_features_need_a_teacher_with_segments_of_the_student() -> None:
    with pytest.raises(UserError, match="teacher_features needs a teacher of our own families"):
        Teacher(Says([0]), depths=4)
    with pytest.raises(UserError, match="no features to compare; set teacher_features to 0"):
        feature_difference({"a": torch.ones(1, 2, 3)}, {"b": torch.ones(1, 2, 3)})


def test_a_narrower_student_learns_the_first_channels() -> None:
    wide = torch.randn(2, 5, 8)
    assert feature_difference({"norm": wide[..., :6]}, {"norm": wide}).item() == pytest.approx(0, abs=1e-9)
    with pytest.raises(UserError, match="no features"):
        feature_difference({"norm": torch.ones(2, 4, 8)}, {"norm": wide})


def test_a_model_folder_can_teach(tmp_path: Path) -> None:
    model = tiny.SPACE.build(tiny.SMALLEST)
    save_model(model, tmp_path)
    tiny.assert_same(load_teacher(str(tmp_path), 10, 1, CPU), model)
    recipe = tiny.recipe(iterations=2, teacher=str(tmp_path), teacher_weight=1.0)
    taught, _ = tiny.train(None, recipe)
    alone, _ = tiny.train(None, tiny.recipe(iterations=2))
    assert not torch.equal(taught.weights.head.fc.weight, alone.weights.head.fc.weight)


def test_a_timm_model_can_teach(tmp_path: Path) -> None:
    import timm

    model = timm.create_model("test_resnet", num_classes=10, in_chans=1)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    tiny.assert_same(load_teacher(f"timm:test_resnet:{tmp_path / 'weights.pth'}", 10, 1, CPU), model)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("missing", "no model folder at missing"),
        ("timm:no_such_model", "cannot load the teacher timm:no_such_model .*; check its name and weights"),
        ("timm:test_resnet:no/file.pth", "cannot load the teacher timm:test_resnet:no/file.pth"),
    ],
)
def test_a_teacher_that_cannot_be_loaded(source: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_teacher(source, 10, 1, CPU)


def test_a_teacher_of_other_classes(tmp_path: Path) -> None:
    save_model(tiny.SPACE.build(tiny.SMALLEST), tmp_path)
    with pytest.raises(UserError, match="is for other classes or channels"):
        load_teacher(str(tmp_path), 11, 1, CPU)
