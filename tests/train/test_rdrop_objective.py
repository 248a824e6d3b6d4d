"""R-Drop counts a target once, and is the plain loss where nothing is dropped; in 16 bits too."""

from __future__ import annotations

import pytest
import torch
from support import CLASSES, VOCAB, fresh, tiny
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from heed.config import Recipe
from heed.data.batching.batch import IGNORE_INDEX, Batch, pad_rows
from heed.errors import ConfigError
from heed.models import Model, build
from heed.train.objective import Loss, Objective, loss
from heed.train.prepare.setup import validate_recipe
from heed.train.step import split_batches

TASKS = ["translate", "classify", "generate", "packed"]


def batch_of(task: str) -> Batch:
    """Texts of several lengths, padded on the right."""
    texts, length = 3, 7
    generator = torch.Generator().manual_seed(0)
    ids, source, targets = torch.randint(VOCAB, (3, texts, length), generator=generator)
    mask = torch.arange(length) < torch.tensor([length, 4, 2])[:, None]
    count = length + 4 + 2
    positions = torch.arange(length)[None]
    if task == "classify":
        return Batch(ids, targets[:, 0] % CLASSES, mask, positions, texts, (0, 1, 2))
    targets = targets.masked_fill(~mask, IGNORE_INDEX)
    batch = Batch(ids, targets, mask, positions, count, (0, 1, 2))
    if task == "packed":
        segments = (torch.arange(length) // 4).expand(texts, -1)
        own = (torch.arange(length) % 4).expand(texts, -1)
        return batch.with_tensors({"segments": segments, "positions": own})
    if task == "generate":
        return batch
    return batch.with_tensors(
        {"source": source, "source_mask": mask.flip(0), "source_positions": positions}
    )


def model_of(task: str, dropout: float) -> Model:
    return fresh("generate" if task == "packed" else task, layers=1, dropout=dropout).train()


def learnt(model: Model, batch: Batch, *, rdrop: float = 0.0) -> tuple[Loss, list[torch.Tensor]]:
    torch.manual_seed(0)
    model.zero_grad()
    part = loss(model, batch, label_smoothing=0.1, rdrop=rdrop)
    part.total.backward()
    return part, [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("task", TASKS)
def test_without_dropout_it_is_the_plain_loss(task: str) -> None:
    model, batch = model_of(task, 0.0), batch_of(task)
    plain, gradients = learnt(model, batch)
    found, others = learnt(model, batch, rdrop=5.0)
    torch.testing.assert_close(found.total, plain.total)
    torch.testing.assert_close(others, gradients)
    assert (found.count, float(found.correct)) == (plain.count, float(plain.correct))


@pytest.mark.parametrize("task", TASKS)
def test_with_dropout_disagreement_costs(task: str) -> None:
    model, batch = model_of(task, 0.3), batch_of(task)
    little, much = (learnt(model, batch, rdrop=alpha)[0].total for alpha in (1e-6, 5.0))
    assert much > little
    again = learnt(model, batch, rdrop=5.0)[0].total
    assert again == much


@pytest.mark.parametrize("task", TASKS)
def test_it_grows_with_its_weight_alone(task: str) -> None:
    """total(α) = mean cross-entropy + α · disagreement, on the same draws."""
    model, batch = model_of(task, 0.3), batch_of(task)
    one, two, four = (learnt(model, batch, rdrop=alpha)[0].total for alpha in (1.0, 2.0, 4.0))
    torch.testing.assert_close(four - two, 2 * (two - one), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("task", TASKS)
def test_blank_rows_change_nothing(task: str) -> None:
    model, batch = model_of(task, 0.0), batch_of(task)
    (one, gradients), (other, others) = (
        learnt(model, each, rdrop=2.0) for each in (batch, pad_rows(batch, 5))
    )
    torch.testing.assert_close(one.total, other.total)
    torch.testing.assert_close(gradients, others)


@pytest.mark.parametrize("task", TASKS)
def test_a_batch_is_its_rows(task: str) -> None:
    model, batch = model_of(task, 0.0), batch_of(task)
    rows = list(split_batches([batch], len(batch.ids)))
    assert [len(row.ids) for row in rows] == [1] * len(batch.ids)
    whole, parts = (
        [learnt(model, each, rdrop=2.0)[0] for each in batches] for batches in ([batch], rows)
    )
    torch.testing.assert_close(sum(part.total for part in parts), whole[0].total)
    assert sum(part.count for part in parts) == whole[0].count


@pytest.mark.parametrize("task", TASKS)
def test_in_16_bits_it_is_nearly_the_same(task: str) -> None:
    model, batch = model_of(task, 0.2), batch_of(task)
    objective = Objective(model, rdrop=3.0)
    totals = []
    for half in (False, True):
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            total, _ = objective(batch)
        total.backward()
        totals.append(total.item())
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert totals[1] == pytest.approx(totals[0], rel=0.03)


def test_class_weights_weigh_all_of_a_text() -> None:
    model, batch = model_of("classify", 0.3), batch_of("classify")
    totals = []
    for weights in (None, [2.0] * CLASSES):
        torch.manual_seed(0)
        totals.append(Objective(model, rdrop=3.0, class_weights=weights)(batch)[0])
    torch.testing.assert_close(totals[1], 2 * totals[0])


def test_without_dropout_there_is_nothing_to_compare() -> None:
    tables = {"data": {"synthetic": 9}, "train": {"rdrop": 5.0}, "model": {"dropout": 0.0}}
    with pytest.raises(ConfigError, match=r"set model\.dropout"):
        validate_recipe(Recipe.of(tables))


@pytest.mark.parametrize("task", TASKS)
def test_nothing_asks_the_device_for_a_number(task: str) -> None:
    """Tensors without memory have none to give: whatever would wait for one, fails."""
    with FakeTensorMode():
        own = "generate" if task == "packed" else task
        model = build(own, tiny(dropout=0.2), vocab=VOCAB, classes=CLASSES).train()
        total, right = Objective(model, rdrop=3.0)(batch_of(task))
        total.backward()
    assert total.shape == right.shape == ()
    assert all(p.grad is None or p.grad.shape == p.shape for p in model.parameters())
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        torch.ones(1).item()
