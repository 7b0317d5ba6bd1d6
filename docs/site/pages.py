"""The pages of the site, in the order of its menu."""

from collections.abc import Callable

from docs.site.reference import commands_page, files_page, settings_page

# A section's title, and its pages: Markdown files (below docs/ unless they begin with /), or functions that
# write Markdown from the code.
SECTIONS: dict[str, list[str | Callable[[], str]]] = {
    "Start": ["start.md", "python.md"],
    "Tour": ["tour/README.md", "tour/*.md"],
    "How to": [
        "data.md",
        "translating.md",
        "chatting.md",
        "writing.md",
        "reading.md",
        "words.md",
        "seeing.md",
        "hearing.md",
        "looking.md",
        "training.md",
        "scale.md",
        "runs.md",
        "exporting.md",
        "serving.md",
    ],
    "Reference": [commands_page, settings_page, files_page],
    "Results": [
        "results.md",
        "plan.md",
        "performance.md",
        "experiments.md",
        "story.md",
        "reliability.md",
        "subject.md",
    ],
    "Architecture": ["/CONTRIBUTING.md", "/SECURITY.md", "/CHANGELOG.md"],
}
