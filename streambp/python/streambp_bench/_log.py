"""What the package has to say: one logger, "streambp_bench", whose lines are seen on stderr unless its user has other plans for it."""

import logging
import sys

logger = logging.getLogger("streambp_bench")


class _Stderr(logging.StreamHandler):
    """To what sys.stderr is when a line comes."""

    @property
    def stream(self):
        return sys.stderr

    @stream.setter
    def stream(self, _):
        pass


if not logger.handlers:
    logger.addHandler(_Stderr())
    logger.handlers[0].setFormatter(logging.Formatter("streambp: %(message)s"))
    logger.setLevel(logging.INFO)
    logger.propagate = False


def say(line):
    """One line for whoever trains."""
    logger.info(line)
