"""Tables show themselves in a notebook and at a Python prompt."""

import pytest
import torch

from regard.draw.table import Table


def test_a_tensor_is_one_cell_for_each_number():
    table = Table(
        ["weight", "<s>", "am"], zip(["<s>", "am"], torch.tensor([[1.0, -0.001], [0.25, 7]]), strict=True)
    )
    assert repr(table).splitlines() == [
        "weight  <s>   am",
        "<s>     1.00  0.00",
        "am      0.25  7.00",
    ]
    assert table._repr_markdown_().splitlines() == [
        "| weight | &lt;s> | am |",
        "| --- | --- | --- |",
        "| &lt;s> | 1.00 | 0.00 |",
        "| am | 0.25 | 7.00 |",
    ]


def test_numbers_stand_at_the_right_edge():
    assert repr(Table(["heads", "weights"], [[1, 1050624], [16, 7]])).splitlines() == [
        "heads  weights",
        "    1  1050624",
        "   16        7",
    ]
    assert repr(Table(["", "p"], [["a", 0.123], ["b", 12.0]], digits=1)).splitlines()[1:] == [
        "a   0.1",
        "b  12.0",
    ]


def test_rows_have_the_columns_of_the_table():
    with pytest.raises(ValueError, match="3 cells in a table of 2 columns"):
        Table(["a", "b"], [[1, 2, 3]])
