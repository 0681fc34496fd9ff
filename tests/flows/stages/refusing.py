"""A stage whose input is wrong, which no retry mends."""

from tasks.stage import InputError, Stage

STAGE = Stage(name="refusing", version=1)


def run(config, inputs, out):
    out.log("attempt")
    raise InputError("texts/a.txt is not UTF-8 at byte 12: convert it.")
