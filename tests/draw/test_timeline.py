"""Events stand below each other in the order of their years."""

from regard.draw.scene import Text
from regard.draw.timeline import Timeline


def test_events_are_in_order_and_a_year_is_written_once():
    events = [(2018, "BERT", "Devlin"), (1964, "kernels", "Nadaraya"), (2018, "GPT", "Radford")]
    scene = Timeline("ideas", events).scene()
    words = [shape.words for shape in scene.shapes if isinstance(shape, Text)]
    assert words == ["ideas", "1964", "kernels", "Nadaraya", "2018", "BERT", "Devlin", "GPT", "Radford"]
    rows = {shape.y for shape in scene.shapes if isinstance(shape, Text) and shape.words != "ideas"}
    assert len(rows) == len(events)
    assert max(rows) < scene.height
