"""The tasks of chat evaluation: each a list of questions with a way to judge an answer.

A task is named in `chat.tasks`; `world` stands for all tasks of the sample world. ChatCORE is nanochat's:
the mean over its six tasks of the accuracy, centred so that guessing is 0.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tasks.chat_tasks import gsm8k, humaneval, multiple_choice, spelling, world
from tasks.chat_tasks.task import ChatTask
from tasks.chat_tasks.task_data import TaskData

if TYPE_CHECKING:
    from conf.schema import ChatConfig
    from conf.schema import World as WorldConfig

CHATCORE = ("arc_easy", "arc_challenge", "mmlu", "gsm8k", "humaneval", "spellingbee")
"""The tasks that nanochat's ChatCORE averages."""

MAKERS: dict[str, Callable[[TaskData], ChatTask]] = {
    "arc_easy": multiple_choice.arc_easy,
    "arc_challenge": multiple_choice.arc_challenge,
    "mmlu": multiple_choice.mmlu,
    "gsm8k": gsm8k.gsm8k,
    "humaneval": humaneval.humaneval,
    "spellingbee": spelling.spellingbee,
    "simple_spelling": spelling.simple_spelling,
}


def load(chat: "ChatConfig", world_config: "WorldConfig", data: TaskData) -> list[ChatTask]:
    """The tasks that `chat.tasks` names, cut to `chat.max_per_task`."""
    found: list[ChatTask] = []
    for name in chat.tasks:
        if name == "world":
            found += world.world_tasks(world_config)
        else:
            found.append(MAKERS[name](data))
    return [task.cut(chat.max_per_task) for task in found]
