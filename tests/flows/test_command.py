"""What the commands have in common."""

import pytest

from flows import cycle, plan, rehearsal


@pytest.mark.parametrize("flow", [cycle, plan, rehearsal])
@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_tells_how_the_command_is_used_and_does_nothing(flow, word, capsys):
    assert flow.main(["scale=d4", word]) == 0
    assert f"python -m {flow.__name__}" in capsys.readouterr().out
