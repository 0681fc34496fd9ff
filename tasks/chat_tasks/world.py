"""The tasks of the sample world: held-out questions, answered by a letter or by exactly the right
sentence."""

from conf.schema import World
from tasks.chat_tasks.task import ChatTask, Question
from tasks.world import ChatQuestion, chat_tasks


def world_tasks(world: World) -> list[ChatTask]:
    """Facts, checks, choices, spelling and sums, `world.questions` of each at most."""
    found = chat_tasks(world, world.seed or 0, world.questions)
    return [
        ChatTask(
            name,
            tuple(Question(i, q.conversation, q.answer, q.letters) for i, q in enumerate(questions)),
            _guessing(questions),
            source="sample world",
        )
        for name, questions in found.items()
    ]


def _guessing(questions: list[ChatQuestion]) -> float:
    """Accuracy of drawing a letter; nobody guesses a sentence."""
    return sum(1 / len(q.letters) for q in questions if q.letters) / max(len(questions), 1)
