"""One kind of error for people, so that the command line can tell their mistakes from ours."""


class Mistake(ValueError):
    """What the user got wrong, where (file and line, or key), and how to mend it, in one line."""
