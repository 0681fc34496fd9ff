"""The files behind the tasks: `chat.data_dir` is a directory, a gs:// or https:// prefix with
`<name>.jsonl.gz`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.chat_format import Conversation, FormatError
from tasks.fetch import fetch, is_remote
from tasks.reading import json_lines, lines
from tasks.stage import InputError, StopSignal

WORDS = "words_alpha.txt.gz"


@dataclass(frozen=True)
class TaskData:
    """Where task files lie, and where copies of remote ones are kept."""

    data_dir: str
    word_list: str | None
    copies: Path
    stop: StopSignal

    def records(self, stem: str) -> Iterator[tuple[str, int, Any]]:
        """(place for an error, number from 0, value) of each record of `<stem>.jsonl.gz`."""
        name = self._address(f"{stem}.jsonl.gz")
        for index, (number, value) in enumerate(json_lines(self._file(name), name)):
            yield f"{name}:{number}", index, value

    def conversations(self, stem: str, make: Callable[[Any], Conversation]) -> Iterator[tuple[int, Conversation, Any]]:
        """(number, conversation, record) of each record; InputError names the line of one that does not
        fit."""
        for place, index, value in self.records(stem):
            try:
                yield index, make(value), value
            except FormatError as error:
                raise InputError(f"{place}: {error}.") from error

    def words(self) -> list[str]:
        """The word list of the spelling tasks, one word a line."""
        name = self.word_list or self._address(WORDS)
        return [word for line in lines(self._file(name), name) if (word := line.strip())]

    def _address(self, name: str) -> str:
        if self.data_dir == "world":
            raise InputError(
                f"chat.data_dir is 'world', which has no {name}: set it to the folder or address of the task files, "
                "or chat.tasks to [world]."
            )
        return f"{self.data_dir.rstrip('/')}/{name}"

    def _file(self, name: str) -> Path:
        file = fetch(name, self.copies, self.stop)
        if not is_remote(name) and not file.is_file():
            raise InputError(f"{file} does not exist: chat.data_dir (or chat.word_list) must lead to it.")
        return file
