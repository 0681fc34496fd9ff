"""What a parent and the child process that runs its stage agree on."""

DONE = 0
FAILED = 1
PREEMPTED = 75
"""Exit status: stopped on request, run it again (EX_TEMPFAIL)."""
REFUSED = 78
"""Exit status: wrong config or input, running it again cannot help (EX_CONFIG)."""

EVENTS_VARIABLE = "ENCORE_EVENTS_FD"
"""Environment variable with the descriptor that takes events, one JSON object a line."""
STOP_LINE = b"stop\n"
"""Line on the child's standard input that asks it to save and leave; the end of that input asks the same."""
