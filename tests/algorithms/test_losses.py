"""Losses against closed forms of torch, and their closed gradients against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedpeer.algorithms.losses import LOSSES, completed, predicted, score_sums
from tests.algorithms.client_factory import targets

SHAPES = [(4,), (3, 4), (2, 3, 4)]


def example(loss: str, lead: tuple[int, ...], outputs: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(len(lead) + outputs)
    z = 2 * torch.randn((*lead, outputs), generator=generator, dtype=torch.float64)
    y = targets(LOSSES[loss], lead, outputs, generator)
    return z, y if LOSSES[loss].classifies else y.double()


def closed_form(loss: str, z: Tensor, y: Tensor) -> Tensor:
    """Return the loss of one batch z (B, C), computed with torch's own functions."""
    if loss == "cross-entropy":
        return functional.cross_entropy(z, y)
    if LOSSES[loss].classifies:
        wanted = y[:, None].to(z) if z.shape[1] == 1 else functional.one_hot(y, z.shape[1]).to(z)
        if loss == "binary":
            return functional.binary_cross_entropy_with_logits(z, wanted, reduction="sum") / len(z)
        return functional.mse_loss(torch.sigmoid(z), wanted, reduction="sum") / 2 / len(z)
    if loss == "multi-label":
        return functional.binary_cross_entropy_with_logits(z, y)
    if loss == "completion":
        wrong = [(a > 0) != (b > 0) for a, b in zip(z.flatten().tolist(), y.flatten().tolist(), strict=True)]
        return torch.tensor(sum(wrong) / len(wrong), dtype=z.dtype)
    numbers = {"mean-squared-error": functional.mse_loss, "mean-absolute-error": functional.l1_loss}
    return numbers.get(loss, functional.huber_loss)(z, y)


def cases() -> list[tuple[str, int]]:
    named = [name for name, loss in LOSSES.items() if not loss.continues]
    return [(name, outputs) for name in named for outputs in (1, 3) if (name, outputs) != ("cross-entropy", 1)]


@pytest.mark.parametrize("lead", SHAPES)
@pytest.mark.parametrize(("loss", "outputs"), cases())
def test_value_is_the_closed_form_of_each_batch(loss: str, outputs: int, lead: tuple[int, ...]) -> None:
    z, y = example(loss, lead, outputs)
    found = LOSSES[loss].value(z, y)
    assert found.shape == lead[:-1]
    flat_z, flat_y = z.reshape(-1, *z.shape[-2:]), y.reshape(-1, *y.shape[len(lead) - 1 :])
    wanted = torch.stack([closed_form(loss, *one) for one in zip(flat_z, flat_y, strict=True)])
    torch.testing.assert_close(found.reshape(-1), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lead", SHAPES)
@pytest.mark.parametrize(("loss", "outputs"), [case for case in cases() if LOSSES[case[0]].delta is not None])
def test_delta_is_the_gradient_of_the_sum_over_the_batch(loss: str, outputs: int, lead: tuple[int, ...]) -> None:
    z, y = example(loss, lead, outputs)
    z.requires_grad_()
    delta = LOSSES[loss].delta
    assert delta is not None
    (gradient,) = torch.autograd.grad((LOSSES[loss].value(z, y) * lead[-1]).sum(), z)
    torch.testing.assert_close(delta(z.detach(), y), gradient, rtol=1e-12, atol=1e-12)


def test_regression_targets_without_an_axis_are_one_output() -> None:
    z, y = torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 4.0])
    assert LOSSES["mean-squared-error"].value(z, y).item() == pytest.approx((1 + 4) / 2)


def test_numbers_far_from_zero_stay_finite() -> None:
    z, y = torch.tensor([[200.0, -200.0]]), torch.tensor([1])
    for name in ("cross-entropy", "binary", "squared-error"):
        assert bool(torch.isfinite(LOSSES[name].value(z, y)).all())


@pytest.mark.parametrize(
    ("loss", "classes", "outputs"),
    [
        ("cross-entropy", 2, 2),
        ("cross-entropy", 10, 10),
        ("squared-error", 2, 1),
        ("squared-error", 7, 7),
        ("binary", 2, 1),
        ("multi-label", 2, 2),
        ("multi-label", 5, 5),
    ],
)
def test_outputs_that_a_classifier_needs(loss: str, classes: int, outputs: int) -> None:
    assert LOSSES[loss].outputs(classes) == outputs


def test_predicted_is_the_largest_output_or_the_sign() -> None:
    assert predicted(torch.tensor([[0.1, 3.0, -1.0], [2.0, 1.0, 0.0]])).tolist() == [1, 0]
    assert predicted(torch.tensor([[[-0.1], [0.1]]])).tolist() == [[0, 1]]


def test_scores_of_a_classifier_are_right_answers_and_summed_loss() -> None:
    z, y = example("cross-entropy", (2, 5), 3)
    right, loss = score_sums(LOSSES["cross-entropy"], z, y)
    assert right.tolist() == [sum(int(a.argmax()) == int(b) for a, b in zip(z[p], y[p], strict=True)) for p in (0, 1)]
    wanted = [functional.cross_entropy(z[p], y[p], reduction="sum").item() for p in (0, 1)]
    assert loss.tolist() == pytest.approx(wanted)
    assert right.dtype == loss.dtype == torch.float64


def test_scores_of_a_regression_are_squared_errors_and_pieces_add_up() -> None:
    z, y = example("huber", (6,), 2)
    errors, loss = score_sums(LOSSES["huber"], z, y)
    assert errors.item() == pytest.approx(((z - y) ** 2).mean(1).sum().item())
    pieces = [score_sums(LOSSES["huber"], z[part], y[part]) for part in (slice(0, 4), slice(4, 6))]
    assert errors.item() == pytest.approx(sum(e.item() for e, _ in pieces))
    assert loss.item() == pytest.approx(sum(v.item() for _, v in pieces))


def test_scores_of_labels_are_the_shares_of_them_that_are_right() -> None:
    z, y = example("multi-label", (2, 6), 5)
    right, loss = score_sums(LOSSES["multi-label"], z, y)
    rows = [[list(zip(a.tolist(), b.tolist(), strict=True)) for a, b in zip(z[p], y[p], strict=True)] for p in (0, 1)]
    wanted = [sum(sum((a > 0) == (b == 1) for a, b in row) / 5 for row in each) for each in rows]
    assert right.tolist() == pytest.approx(wanted)
    assert 0 < right.min() < right.max() < 6, "some are wrong, and not all"
    assert loss.tolist() == pytest.approx((6 * LOSSES["multi-label"].value(z, y)).tolist())
    assert right.dtype == loss.dtype == torch.float64


def test_a_label_whose_answer_is_sure_and_wrong_costs_what_its_logit_says() -> None:
    z, y = torch.tensor([[20.0, -20.0, 20.0, -20.0]]), torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    assert LOSSES["multi-label"].value(z, y).item() == pytest.approx(10.0, rel=1e-6)


@pytest.mark.parametrize("outputs", [1, 4])
def test_a_pattern_is_completed_by_as_many_right_ones_as_wrong_units(outputs: int) -> None:
    """This holds for every pair of patterns."""
    all_AV = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * outputs).reshape(-1, outputs)
    for expected_V in all_AV:
        found = completed(all_AV, expected_V.expand_as(all_AV))
        for answer, counted in zip(all_AV.tolist(), found.tolist(), strict=True):
            pairs = list(zip(expected_V.tolist(), answer, strict=True))
            assert counted == (sum(c == a == 1 for c, a in pairs) >= sum(c != a for c, a in pairs))


def test_scores_of_completion_are_completed_patterns_and_wrong_units() -> None:
    z, y = example("completion", (2, 6), 5)
    y[:, :3] = (z[:, :3] > 0).double()  # the first three patterns are right
    right, loss = score_sums(LOSSES["completion"], z, y)
    assert right.tolist() == completed(z, y).sum(-1).tolist()
    assert min(right.tolist()) >= 3
    assert loss.tolist() == pytest.approx(((z > 0) != (y > 0)).double().mean(-1).sum(-1).tolist())


def text(lead: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return logits of 5 tokens at 4 places (*lead, 4, 5) and next tokens (*lead, 4), some of which are missing."""
    generator = torch.Generator().manual_seed(len(lead))
    z = 2 * torch.randn((*lead, 4, 5), generator=generator, dtype=torch.float64)
    y = torch.randint(0, 5, (*lead, 4), generator=generator)
    y[..., 0, 2:] = y[..., -1, 3:] = -1
    return z, y


@pytest.mark.parametrize("lead", SHAPES)
def test_the_loss_of_text_is_the_mean_over_its_places_and_then_over_texts(lead: tuple[int, ...]) -> None:
    z, y = text(lead)
    found = LOSSES["next-token"].value(z, y)
    assert found.shape == lead[:-1]
    wanted = []
    for z_BTV, y_BT in zip(z.reshape(-1, lead[-1], 4, 5), y.reshape(-1, lead[-1], 4), strict=True):
        each = [functional.cross_entropy(a[b >= 0], b[b >= 0]) for a, b in zip(z_BTV, y_BT, strict=True)]
        wanted.append(torch.stack(each).mean())
    torch.testing.assert_close(found.reshape(-1), torch.stack(wanted), rtol=1e-12, atol=1e-12)


def test_the_score_of_text_is_the_part_of_its_next_tokens_that_is_right() -> None:
    y = torch.tensor([[1, 2, -1, -1], [0, 1, 2, 3], [4, -1, -1, -1]])
    z = functional.one_hot(torch.tensor([[1, 3, 4, 0], [0, 1, 2, 0], [4, 4, 4, 4]]), 5).double() * 9
    right, loss = score_sums(LOSSES["next-token"], z, y)
    assert float(right) == pytest.approx(0.5 + 0.75 + 1)
    assert float(loss) == pytest.approx(3 * float(LOSSES["next-token"].value(z, y)))


def test_a_text_without_a_next_token_costs_nothing() -> None:
    z, y = torch.randn(2, 3, 5), torch.tensor([[-1, -1, -1], [0, 1, 2]])
    each = LOSSES["next-token"].each
    assert each is not None
    assert each(z, y)[0] == 0
    assert score_sums(LOSSES["next-token"], z, y)[0].isfinite()
