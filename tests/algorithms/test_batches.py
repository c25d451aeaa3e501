"""Orders of examples as one endless sequence, how peers see inputs, and blocks of batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.algorithms.batches import Batches, BatchView, order
from fedpeer.algorithms.draws import Draws
from tests.algorithms.client_factory import batches


@given(st.integers(1, 20), st.integers(0, 5))
def test_each_pass_is_a_permutation(examples: int, number: int) -> None:
    one = order(examples, number * examples, examples, Draws(3), "peer1")
    assert sorted(one) == list(range(examples))


@given(st.integers(1, 12), st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_cutting_anywhere_gives_the_same_sequence(examples: int, lengths: list[int]) -> None:
    ends = np.cumsum([0, *lengths]).tolist()
    pieces = [order(examples, start, length, Draws(3), "p") for start, length in zip(ends, lengths, strict=False)]
    assert np.concatenate(pieces).tolist() == order(examples, 0, ends[-1], Draws(3), "p").tolist()


def test_passes_peers_and_seeds_are_shuffled_each_their_own_way() -> None:
    sequence = order(50, 0, 100, Draws(0), "peer1").tolist()
    others = [sequence[50:], order(50, 0, 50, Draws(0), "peer2").tolist(), order(50, 0, 50, Draws(1), "peer1").tolist()]
    assert len({tuple(each) for each in (sequence[:50], list(range(50)), *others)}) == 5


def view() -> BatchView:
    """Return the view of two peers on four features: permuted, then shifted and scaled."""
    return BatchView(
        torch.tensor([[3, 2, 1, 0], [1, 0, 3, 2]]),
        torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 1.0]]),
        torch.tensor([[1.0, 2.0, 4.0, 8.0], [1.0, 1.0, 1.0, 0.5]]),
    )


def test_a_view_permutes_then_normalises_by_the_definition() -> None:
    x = torch.arange(2 * 3 * 4.0).reshape(2, 3, 2, 2)  # two peers, three examples of shape (2, 2)
    found = view()(x, 2)
    assert found.shape == x.shape
    assert view().feature_map_F is not None
    for p, b, i in np.ndindex(2, 3, 4):
        of = int(view().fields()[0][p, i])  # type: ignore[index]
        shift, scale = view().shift_F, view().scale_F
        assert shift is not None
        assert scale is not None
        wanted = (x[p, b].flatten()[of] - shift[p, i]) / scale[p, i]
        assert found[p, b].flatten()[i] == wanted


def test_a_block_of_views_is_each_peers_own() -> None:
    x = torch.randn(2, 3, 4)
    both = view()(x, 1)
    for peer in (0, 1):
        assert torch.equal(view().of(peer)(x[peer], 1), both[peer])
    assert torch.equal(view().of(torch.tensor([1, 0]))(x.flip(0), 1), both.flip(0))
    assert torch.equal(view().of(1).of(None)(x[1:], 1), both[1:])


@pytest.mark.parametrize("kept", [0, 1])
def test_a_view_may_do_one_thing_only(kept: int) -> None:
    feature_map, shift, scale = view().fields()
    one = BatchView(feature_map) if kept == 0 else BatchView(None, shift, scale)
    rest = BatchView(None, shift, scale) if kept == 0 else BatchView(feature_map)
    x = torch.randn(2, 3, 4)
    assert not torch.equal(one(x, 1), x)
    if kept == 0:
        assert torch.equal(rest(one(x, 1), 1), view()(x, 1))


def test_batches_show_rows_and_targets_of_each_step() -> None:
    block = batches(peers=2, steps=3, size=4, features=(2, 3))
    assert (block.steps, block.size) == (3, 4)
    for step in range(3):
        assert block.inputs(step).shape == (2, 4, 2, 3)
        for peer in (0, 1):
            rows = block.index[peer, step]
            assert torch.equal(block.inputs(step)[peer], block.x_NF[rows])
            assert torch.equal(block.peer(peer).inputs(step), block.x_NF[rows])
            assert torch.equal(block.targets(step)[peer], block.y[peer, step])
            assert torch.equal(block.peer(peer).targets(step), block.y[peer, step])
    assert torch.equal(block.all_inputs()[1, 4:8], block.inputs(1)[1])


def test_targets_with_an_axis_of_outputs_are_cut_by_step() -> None:
    block = batches("mean-squared-error", peers=2, steps=3, size=4, outputs=2)
    assert block.targets(2).shape == (2, 4, 2)
    assert torch.equal(block.peer(1).targets(2), block.y[1, 2])


@pytest.mark.parametrize("loss", ["cross-entropy", "mean-squared-error"])
def test_steps_are_taken_in_any_order_and_number(loss: str) -> None:
    block = batches(loss, peers=2, steps=3, size=4, outputs=2)
    for one in (block, block.peer(1)):
        taken = one.taking([2, 0, 2])
        assert taken.steps == 3
        for step, source in enumerate((2, 0, 2)):
            assert torch.equal(taken.inputs(step), one.inputs(source))
            assert torch.equal(taken.targets(step), one.targets(source))


def test_one_peer_as_a_block_of_one_and_back() -> None:
    block = batches(peers=2)
    seen = Batches(block.x_NF[:, :4], block.index, block.y, view())
    one = seen.peer(1)
    assert torch.equal(one.block().inputs(0), seen.inputs(0)[1:])
    assert torch.equal(one.block().peer(0).all_inputs(), seen.all_inputs()[1])
    assert one.view is not None


def test_clients_keep_their_numbers_alone_in_blocks_and_over_steps() -> None:
    block = replace(batches(peers=3), number=torch.tensor([4, 0, 7]))
    assert [int(block.peer(p).number) for p in range(3)] == [4, 0, 7]  # type: ignore[arg-type]
    one = block.peer(2).block()
    assert one.number is not None
    assert one.number.tolist() == [7]
    assert torch.equal(block.taking([1, 1]).number, torch.tensor([4, 0, 7]))  # type: ignore[arg-type]
    assert batches(peers=2).peer(1).number is None
    assert batches(peers=2).peer(1).block().number is None


def test_a_peer_of_a_block_and_a_peer_as_a_block_are_in_the_same_round() -> None:
    index = torch.zeros(2, 3, 1, dtype=torch.int64)
    both = Batches(torch.zeros(1, 4), index, index, number=torch.tensor([5, 6]), round=7)
    one = both.peer(1)
    assert (one.round, int(one.number or 0)) == (7, 6)
    assert (one.block().round, one.block().index.shape) == (7, (1, 3, 1))
    assert both.taking([0, 2]).round == 7
