"""Worlds at their default sizes, with all that a training run sees of them, made once."""

from dataclasses import dataclass

import pytest

from conf.schema import World
from tasks.world import conversations, documents
from tasks.world.island import Island, build


@dataclass(frozen=True)
class Known:
    """A world and its training text: documents and what is said in conversations, a line end between any two."""

    world: World
    seed: int
    island: Island
    text: str


@pytest.fixture(scope="session", params=[0, 1, 2], ids="seed{}".format)
def known(request) -> Known:
    world, seed = World(), request.param
    said = [
        message["content"]
        for conversation in conversations(world, seed)["train"]
        for message in conversation["messages"]
        if isinstance(message["content"], str)
    ]
    text = "\n".join([*documents(world, seed)["train"], *said])
    return Known(world, seed, build(world, seed), text)
