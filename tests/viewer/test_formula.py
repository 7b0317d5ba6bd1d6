"""The page draws formulas that are written in one line."""

DRAW = """async (texts) => {
  const { drawFormula } = await import("/page/formula.js");
  return texts.map((text) => drawFormula(text).firstElementChild.innerHTML.replaceAll(/ xmlns="[^"]*"/g, ""));
}"""
FORMULAS = {
    "W x + b": "<mi>W</mi><mi>x</mi><mo>+</mo><mi>b</mi>",
    "Q Kᵀ / √d": (
        "<mfrac><mrow><mi>Q</mi><msup><mi>K</mi><mi>⊤</mi></msup></mrow><msqrt><mi>d</mi></msqrt></mfrac>"
    ),
    "f((x − μ) / σ)": (
        "<mi>f</mi><mrow><mo>(</mo><mfrac><mrow><mi>x</mi><mo>−</mo><mi>μ</mi></mrow><mi>σ</mi></mfrac><mo>)</mo></mrow>"
    ),
    "√(σ^2 + ε)": "<msqrt><mrow><msup><mi>σ</mi><mn>2</mn></msup><mo>+</mo><mi>ε</mi></mrow></msqrt>",
    "Σ_j e^{z_j}": (
        "<munder><mo>∑</mo><mi>j</mi></munder><msup><mi>e</mi><msub><mi>z</mi><mi>j</mi></msub></msup>"
    ),
    "a / b / c": "<mfrac><mfrac><mi>a</mi><mi>b</mi></mfrac><mi>c</mi></mfrac>",
    "W_1 x ⊙ W_3 x": (
        "<msub><mi>W</mi><mn>1</mn></msub><mi>x</mi><mo>⊙</mo><msub><mi>W</mi><mn>3</mn></msub><mi>x</mi>"
    ),
    "→h_{t−1}^2": (
        "<msubsup><mover><mi>h</mi><mo>→</mo></mover><mrow><mi>t</mi><mo>−</mo><mn>1</mn></mrow><mn>2</mn></msubsup>"
    ),
    "E[token]": "<mi>E</mi><mrow><mo>[</mo><mi>token</mi><mo>]</mo></mrow>",
}


def test_formulas(tab):
    assert tab("gpt").page.evaluate(DRAW, list(FORMULAS)) == list(FORMULAS.values())


def test_no_text_is_wrong(tab):
    """What is not well formed is drawn as it is, and never as HTML."""
    texts = ["字 ≠ 5%", "<b>x</b> & 'y'", "", "(", ")", "x_", "^", "√", "/", "x /", "→", "{x", "_{", "ᵀ"]
    drawn = tab("gpt").page.evaluate(DRAW, texts)
    assert drawn[0] == "<mi>字</mi><mo>≠</mo><mn>5</mn><mo>%</mo>"
    assert "<b>" not in drawn[1]
    assert len(drawn) == len(texts)
