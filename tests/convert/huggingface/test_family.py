import pytest

from regard.convert.huggingface.family import MAX_TABLES, build_empty
from regard.models import GPT, GPTConfig


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_tables_of_positions_have_a_limit(positions):
    """A file that says that its context is long asks for no more memory than it fills."""

    def build(context):
        config = GPTConfig(vocab=11, dim=64, heads=1, depth=1, positions=positions, context=context)
        return build_empty(lambda: GPT(config), {})

    longest = MAX_TABLES // 64
    assert all(p.is_meta for p in build(longest // 100).parameters())
    with pytest.raises(ValueError, match="context"):
        build(2 * longest)
