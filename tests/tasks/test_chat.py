"""Chat evaluation: the tasks ask what they should, a known model gets the score it must, and a kill loses nothing."""

import gzip
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np
import pytest

from conf.compose import compose
from conf.schema import ChatTaskName, Config
from model.chat_format import ASSISTANT_START, PYTHON_END, PYTHON_START, check_prompt, render_for_completion
from model.gpt import init
from model.recipe import GPTConfig
from tasks import chat, chat_tasks
from tasks import tokenizer as tokenizers
from tasks.chat_tasks import humaneval
from tasks.chat_tasks.asking import Asker
from tasks.chat_tasks.task import ChatTask, Question
from tasks.chat_tasks.task_data import TaskData
from tasks.stage import InputError, Preempted, StopSignal
from tasks.store.view import ConfigView
from tasks.tokenizer import Tokenizer
from tasks.training.weights_io import save_model
from tests.model.engines import quick_compilation, recipe
from tests.tasks.artifacts import FakeArtifact, FakeWorkspace

SIZES = {"arc_easy": 2376, "arc_challenge": 1172, "mmlu": 14042, "gsm8k": 1319, "humaneval": 164}


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


def test_the_config_takes_the_names_of_the_tasks_there_are() -> None:
    assert set(get_args(ChatTaskName)) == {"world", *chat_tasks.MAKERS}


def configured(*words: str) -> Config:
    return compose(["compute.compute_dtype=float32", "chat.bootstrap_samples=50", *words])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizers.train(["What is it? It is A, B, C or D. 3*4 is 12 and 6/2 is 3. #### 12, #### 3"] * 20, 280)


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> FakeArtifact:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(folder)
    return FakeArtifact(folder)


def write_model(folder: Path, tokenizer: Tokenizer, path: Sequence[int] = ()) -> FakeArtifact:
    """A model that follows `path`: after each token of it comes the next one. Without a path it is a random one."""
    config = GPTConfig(recipe("r4"), tokenizer.vocab_size, seq_len=64, n_layer=1, n_head=2, n_kv_head=2, n_embd=320)
    rng = np.random.default_rng(0)
    like = jax.eval_shape(lambda: init(config, 0))
    params = jax.tree.map(lambda x: np.asarray(rng.normal(size=x.shape) * 0.05, np.float32), like)
    if path:
        params = jax.tree.map(np.zeros_like, params)
        params["wte"] = np.eye(config.padded_vocab_size, config.n_embd, dtype=np.float32)
        params["resid_lambdas"] = np.ones(1, np.float32)
        for token, following in pairwise(path):
            params["lm_head"][following, token] = 1
    folder.mkdir(parents=True, exist_ok=True)
    save_model(folder, params, {}, config)
    return FakeArtifact(folder)


def write_tasks(folder: Path) -> Path:
    """A handful of questions of each kind: the gold letter is B in two of five."""
    folder.mkdir(exist_ok=True)
    files: dict[str, list[dict[str, Any]]] = {
        "arc_easy_test": [
            {
                "id": str(i),
                "question": "What is it?" + " really" * i,
                "choices": {"text": ["w", "x", "y", "z"], "label": ["1", "2", "3", "4"]},
                "answerKey": "1223413"[i],
            }
            for i in range(5)
        ],
        "gsm8k_test": [
            {"question": f"What is 3*{i}?", "answer": f"It is <<3*{i}={3 * i}>>{3 * i}.\n#### {3 * i}"}
            for i in range(3)
        ],
        "HumanEval": [
            {
                "task_id": "HumanEval/0",
                "prompt": 'import math\n\n\ndef double(x):\n    """ Twice x. """\n',
                "canonical_solution": "    return 2 * x\n",
                "test": "def check(candidate):\n    assert candidate(4) == 8\n",
                "entry_point": "double",
            }
        ],
    }
    for name, records in files.items():
        with gzip.open(folder / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
    with gzip.open(folder / "words_alpha.txt.gz", "wt") as file:
        file.write("apple\r\nbanana\r\nstrawberry\r\n")
    return folder


def load(folder: Path, names: Sequence[str], **chat_settings: Any) -> dict[str, ChatTask]:
    config = configured(f"chat.tasks=[{','.join(names)}]", f"chat.data_dir={folder}")
    data = TaskData(str(folder), chat_settings.pop("word_list", None), folder, StopSignal())
    return {task.name: task for task in chat_tasks.load(config.chat, config.data.world, data)}


def said(question: Question) -> str:
    """The right answer of a question as the model would have to write it."""
    content = question.conversation["messages"][-1]["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def test_the_public_tasks_are_whole_and_their_own_answers_right(shared_data: Path, tokenizer: Tokenizer) -> None:
    words = str(shared_data / "data/sft/words_alpha.txt.gz")
    found = load(shared_data / "data/tasks", [*chat_tasks.CHATCORE, "simple_spelling"], word_list=words)
    assert {name: len(task.questions) for name, task in found.items()} == SIZES | {
        "spellingbee": 256,
        "simple_spelling": 256,
    }
    guessed = {name for name, task in found.items() if task.baseline}
    assert guessed == {"arc_easy", "arc_challenge", "mmlu"}
    assert {found[name].baseline for name in guessed} == {0.25}
    for name in ("gsm8k", "spellingbee", "simple_spelling"):
        task = found[name]
        assert all(task.judge(question, said(question)) for question in task.questions)
        assert not any(task.judge(question, "It is #### 123456789.") for question in task.questions)
    for name in ("arc_easy", "mmlu"):
        assert all(question.gold in question.letters for question in found[name].questions)
    cut = found["mmlu"].cut(100)
    assert len({question.id // 500 for question in cut.questions}) > 15, "all subjects, not the first ones"
    assert cut == found["mmlu"].cut(100)


@pytest.mark.usefixtures("jail")
def test_humaneval_answers_are_run(shared_data: Path) -> None:
    task = load(shared_data / "data/tasks", ["humaneval"])["humaneval"]
    for question in task.questions[:3]:
        answer = said(question)
        assert task.judge(question, answer)
        assert task.judge(question, f"Here it is:\n```python\n{answer}\n```\nI hope it helps.")
        assert not task.judge(question, answer.split('"""')[0] + "    pass\n")
        assert not task.judge(question, "I do not know.")


def test_what_is_run_for_humaneval() -> None:
    record = {
        "prompt": "from typing import List\n\ndef f(x: List):\n    '''doc'''\n",
        "test": "def check(c):\n    assert c([1]) == 1",
        "entry_point": "f",
    }
    whole = humaneval.program(record, "Sure!\n```py\ndef f(x: List):\n    return x[0]\n```\nDone.\n```\nother\n```")
    assert whole.startswith("from typing import List\n\ndef f(x: List):\n    return x[0]\n")
    assert whole.endswith("check(f)\n")
    assert "Sure" not in whole
    body = humaneval.program(record, "    return x[0]\n")
    for source in (whole, body):
        exec(source, {})


def test_the_sample_world_has_tasks_with_honest_baselines() -> None:
    config = configured()
    data = TaskData("world", None, Path(), StopSignal())
    tasks = {task.name: task for task in chat_tasks.load(config.chat, config.data.world, data)}
    assert {"world_facts", "world_choices", "world_spelling", "world_sums"} <= tasks.keys()
    for task in tasks.values():
        choice = bool(task.questions[0].letters)
        assert task.baseline == (1 / len(task.questions[0].letters) if choice else 0)
        assert all(choice or task.judge(question, said(question)) for question in task.questions)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["chat.tasks=[arc_easy]"], "chat.data_dir is 'world'"),
        (["chat.tasks=[arc_easy]", "chat.data_dir=/nowhere"], "arc_easy_test.jsonl.gz does not exist"),
    ],
)
def test_tasks_that_cannot_be_had_are_one_sentence(words: list[str], reason: str) -> None:
    config = configured(*words)
    with pytest.raises(InputError, match=reason):
        chat_tasks.load(config.chat, config.data.world, TaskData(config.chat.data_dir, None, Path(), StopSignal()))


def test_a_record_that_does_not_fit_is_named(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "gsm8k_test.jsonl.gz", "wt") as file:
        file.write('{"question": "x", "answer": "#### 1"}\n{"question": "x"}\n')
    with pytest.raises(InputError, match=r"gsm8k_test.jsonl.gz:2: no text 'answer'"):
        load(tmp_path, ["gsm8k"])


def evaluate(config: Config, model: FakeArtifact, vocabulary: FakeArtifact, out: FakeWorkspace) -> dict[str, Any]:
    view: Any = ConfigView(config, chat.STAGE)
    chat.run(view, {"model": model, "tokenizer": vocabulary}, out)  # type: ignore[dict-item, arg-type]
    return json.loads((out.path / "results.json").read_text())


def lines(out: FakeWorkspace, task: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out.path / f"records/{task}.jsonl").read_text().splitlines()]


def test_a_model_that_always_says_b(tokenizer: Tokenizer, vocabulary: FakeArtifact, tmp_path: Path) -> None:
    """Accuracy is the share of questions whose answer is B, whatever the letters of the file are called."""
    [letter] = tokenizer.encode("B")
    model = write_model(tmp_path / "model", tokenizer, [tokenizer.special(ASSISTANT_START), letter])
    data = write_tasks(tmp_path / "tasks")
    config = configured("chat.tasks=[arc_easy,humaneval]", f"chat.data_dir={data}", "chat.batch_rows=2")
    out = FakeWorkspace(tmp_path / "out")
    results = evaluate(config, model, vocabulary, out)
    task = results["tasks"]["arc_easy"]
    assert (task["accuracy"], task["n"], task["baseline"]) == (0.4, 5, 0.25)
    assert task["centered"] == pytest.approx((0.4 - 0.25) / 0.75)
    assert task["ci95"][0] <= 0.4 <= task["ci95"][1]
    found = lines(out, "arc_easy")
    assert [record["id"] for record in found] == [0, 1, 2, 3, 4]
    assert {record["choice"] for record in found} == {"B"}
    assert [record["gold"] for record in found] == ["A", "B", "B", "C", "D"]
    # HumanEval did not run: there is a reason and no ChatCORE of this run.
    assert "allow_code_execution" in results["skipped"]["humaneval"]
    assert results["chatcore"] is None
    assert not results["complete"]
    assert any("humaneval is not run" in line for line in out.logged)


def test_a_model_that_uses_the_calculator(tokenizer: Tokenizer, vocabulary: FakeArtifact, tmp_path: Path) -> None:
    """It asks for 6/2 and is told 3.0; both samples of each question are in the records."""
    call = [tokenizer.encode(c)[0] for c in "6/2"]
    special = {name: tokenizer.special(name) for name in (ASSISTANT_START, PYTHON_START, PYTHON_END)}
    path = [special[ASSISTANT_START], special[PYTHON_START], *call, special[PYTHON_END]]
    model = write_model(tmp_path / "model", tokenizer, path)
    data = write_tasks(tmp_path / "tasks")
    config = configured("chat.tasks=[gsm8k]", f"chat.data_dir={data}", "chat.max_new_tokens=12", "chat.num_samples=2")
    out = FakeWorkspace(tmp_path / "out")
    results = evaluate(config, model, vocabulary, out)
    assert results["chatcore"] == results["tasks"]["gsm8k"]["accuracy"] == 0
    for record in lines(out, "gsm8k"):
        assert len(record["answers"]) == 2
        assert record["answers"][0].startswith("<|python_start|>6/2<|python_end|><|output_start|>3.0<|output_end|>")
        assert record["right"] == [False, False]


def test_an_evaluation_that_was_stopped_goes_on(
    tokenizer: Tokenizer, vocabulary: FakeArtifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "model", tokenizer)
    data = write_tasks(tmp_path / "tasks")
    config = configured(
        "chat.tasks=[arc_easy,gsm8k]", f"chat.data_dir={data}", "chat.batch_rows=2", "chat.max_new_tokens=4"
    )
    whole = FakeWorkspace(tmp_path / "whole")
    expected = evaluate(config, model, vocabulary, whole)

    asked: list[int] = []
    ask = Asker.ask

    def watched(self: Asker, task: ChatTask, batch: Any) -> Any:
        asked.extend(question.id for question, _ in batch)
        if len(asked) == 4:
            out.stop.request("the machine is taken back")
        return ask(self, task, batch)

    monkeypatch.setattr(Asker, "ask", watched)
    out = FakeWorkspace(tmp_path / "out")
    with pytest.raises(Preempted):
        evaluate(config, model, vocabulary, out)
    assert len(asked) == 4
    assert not (out.path / "results.json").exists()
    first = list(asked)
    asked.clear()
    out.stop = StopSignal()
    again = evaluate(config, model, vocabulary, out)
    assert sorted(asked) == sorted([*({0, 1, 2, 3, 4} - set(first)), 0, 1, 2])
    assert again == expected
    for task in ("arc_easy", "gsm8k"):
        assert [r | {"logits": 0} for r in lines(out, task)] == [r | {"logits": 0} for r in lines(whole, task)]
    # Finished tasks are not asked again either, and part files are no part of the artifact.
    asked.clear()
    assert evaluate(config, model, vocabulary, out) == expected
    assert asked == []
    assert all(name.startswith(("records/", "scratch/")) for name in out.published)


def test_prompts_of_all_tasks_pass_the_check(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for task in load(write_tasks(tmp_path / "t"), ["arc_easy", "gsm8k", "humaneval", "spellingbee", "world"]).values():
        for question in task.questions:
            check_prompt(render_for_completion(question.conversation, tokenizer), tokenizer)


def test_a_model_of_another_vocabulary_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", tokenizer)
    other = tokenizers.train(["Quite another text, of other words altogether, for another tokenizer."] * 9, 282)
    other.save(tmp_path)
    config = configured("chat.tasks=[arc_easy]", f"chat.data_dir={write_tasks(tmp_path / 'tasks')}")
    with pytest.raises(InputError, match="vocabulary of 280"):
        evaluate(config, model, FakeArtifact(tmp_path), FakeWorkspace(tmp_path / "out"))
