"""Known failures of CORE evaluations, each with the behaviour that is right."""

import numpy as np
import pytest

from conf.schema import Mesh
from model.branches import device_arrays, reach, score
from model.buckets import plan
from model.recipe import Compute
from model.score import Question, Task, make_question, truncate_left
from tasks import tokenizer as tokenizers
from tasks.evaluation.scorer import Scorer, make_questions
from tasks.training.placement import Placement
from tests.model.engines import full_logits, quick_compilation, random_params, tiny

WORDS = Task("words", "language_modeling", 0, "", 0.0)
CHOICE = Task("choice", "multiple_choice", 10, " ", 0.25)


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.train(["The Answer is an Answer. Answer: yes, the answer. Answers and answers."] * 30, 286)


def spans(question):
    return list(zip(question.starts, question.ends, strict=True))


@pytest.fixture(scope="module")
def scored():
    """`scored(question)` → (losses, hits) of each option's span under a random model with a context of 32 tokens."""
    config = tiny(seq_len=32, vocab_size=300)
    params = random_params(config)

    def run(question):
        (batch,) = plan([question], 100, reach(config))
        losses, hits = (np.asarray(x) for x in score(params, device_arrays(batch, None), config, Compute()))
        return {option: (losses[row, columns], hits[row, columns]) for row, _, option, columns in batch.spans()}

    run.logits = lambda ids: full_logits(params, list(ids), config)
    with quick_compilation():
        yield run


def test_b48_a_merge_across_the_boundary_starts_the_span_at_the_common_prefix(tokenizer):
    """`Ans` + `wer` is one token: the prompt's tokens are no prefix, and a length taken from them scores nothing."""
    prompt, full = tokenizer.encode("The Ans"), tokenizer.encode("The Answer")
    assert full[: len(prompt)] != prompt
    (question,) = make_questions(WORDS, [{"context": "The Ans", "continuation": "wer"}], None, tokenizer)
    ((start, end),) = spans(question)
    assert 1 <= start < end == len(full) + 1
    assert question.options[0][:start] == (tokenizer.bos, *prompt)[:start]
    assert tokenizer.decode(question.options[0][start:end]).endswith("Answer")
    assert question.rules == ("boundary",)


def test_b48_trailing_space_of_a_context_is_not_part_of_the_boundary(tokenizer):
    for context in ("The Answer: ", "The Answer:"):
        item = {"context": context, "continuation": "yes"}
        (question,) = make_questions(Task("t", "language_modeling", 0, " ", 0.0), [item], None, tokenizer)
        assert tokenizer.decode(question.options[0][question.starts[0] :]) == " yes"
        assert question.rules == ()


def test_b49_prompts_past_the_context_run_whole_or_cut_and_are_marked(tokenizer):
    item = {"context": "the answer is " * 30, "continuation": " yes"}
    (whole,) = make_questions(WORDS, [item], None, tokenizer)
    (cut,) = make_questions(WORDS, [item], None, tokenizer, context=32)
    assert whole.ends[0] > 32
    assert not whole.truncated
    assert cut.truncated
    assert cut.options[0] == whole.options[0][-32:]


def test_b49_the_boundary_is_right_after_cutting(tokenizer, scored):
    """A boundary kept from before the cut would score other tokens, or fewer."""
    item = {"context": "the answer is " * 30, "continuation": " yes, an answer"}
    (whole,) = make_questions(WORDS, [item], None, tokenizer)
    (cut,) = make_questions(WORDS, [item], None, tokenizer, context=32)
    span = slice(cut.starts[0], cut.ends[0])
    assert cut.options[0][span] == whole.options[0][whole.starts[0] : whole.ends[0]]
    z = scored.logits(cut.options[0])[span.start - 1 : span.stop - 1]
    aimed = np.array(cut.options[0][span])
    expected = np.log(np.exp(z).sum(-1)) - z[np.arange(len(aimed)), aimed]
    np.testing.assert_allclose(scored(cut)[0][0], expected, rtol=1e-4)


def test_b49_a_cut_into_the_span_scores_what_is_left_of_it():
    question = Question(0, (tuple(range(10)), (0, 1, 2)), (2, 2), (10, 3), gold=0)
    cut = truncate_left(question, 4)
    assert spans(cut) == [(1, 4), (2, 3)]
    assert cut.rules == ("cut",)


def test_b50_fewer_examples_than_shots_is_a_shorter_prompt_not_a_crash(tokenizer):
    """`max_per_task` limits what is scored, never what examples are drawn from; a small file gives what it has."""
    file = [{"query": f"Q{i}", "choices": ["yes", "no"], "gold": i % 2} for i in range(30)]
    limited = make_questions(CHOICE, file, 3, tokenizer)
    assert limited == make_questions(CHOICE, file, None, tokenizer)[:3]
    assert all(tokenizer.decode(question.options[0]).count("\n\n") == 10 for question in limited)
    small = make_questions(CHOICE, file[:4], None, tokenizer)
    assert all(tokenizer.decode(question.options[0]).count("\n\n") == 3 for question in small)
    assert all(question.rules == ("shots",) for question in small)


def test_b50_the_last_token_of_a_continuation_counts(scored):
    """Two continuations that differ in their last token alone have different losses."""
    ids = (0, 5, 9, 11)
    one, other = (scored(Question(0, ((*ids, last),), (2,), (5,), gold=None))[0][0] for last in (17, 23))
    assert len(one) == 3
    np.testing.assert_allclose(one[:2], other[:2], rtol=1e-6)
    assert one[2] != other[2]


def test_b50_a_continuation_of_one_token_is_scored_on_it(scored):
    z = scored.logits((0, 5, 9))[2]
    for ids in ((0, 5, 9, int(z.argmax())), (0, 5, 9, int(z.argmin()))):
        losses, hits = scored(Question(0, (ids,), (3,), (4,), gold=None))[0]
        np.testing.assert_allclose(losses, [np.log(np.exp(z).sum()) - z[ids[-1]]], rtol=1e-5)
        assert hits.tolist() == [bool(ids[-1] == z.argmax())]


def test_b50_an_option_that_begins_another_one_still_has_a_loss():
    """The common prefix eats the shorter option whole; nanochat then averages nothing and gets NaN."""
    question = make_question(CHOICE, 0, 0, [(0, 4, 5), (0, 4, 5, 6)])
    assert spans(question) == [(2, 3), (2, 4)]
    assert question.rules == ("span",)
    equal = make_question(Task("t", "schema", 0, " ", 0.5), 0, 0, [(0, 4, 5), (0, 4, 5)])
    assert spans(equal) == [(1, 3), (1, 3)]
    assert equal.rules == ("span",)


def test_b50_an_empty_continuation_is_scored_on_the_last_token_not_right_by_default(tokenizer):
    (question,) = make_questions(WORDS, [{"context": "The Answer", "continuation": ""}], None, tokenizer)
    assert spans(question) == [(len(question.options[0]) - 1, len(question.options[0]))]
    assert question.rules == ("span",)


def test_b50_nothing_to_read_and_nothing_to_choose_is_wrong_and_not_a_crash(tokenizer):
    """BOS alone has nothing in front of it and so no loss, and an option without a loss never wins."""
    config = tiny(seq_len=32, vocab_size=286)
    scorer = Scorer(random_params(config), config, Compute(), Placement.choose(config, Mesh()))
    bare = Task("bare", "multiple_choice", 0, "", 0.5)
    choices = [{"query": "", "choices": options, "gold": 0} for options in (["", ""], ["", "yes"], ["yes", "yes"])]
    words = [{"context": "", "continuation": ""}]
    with quick_compilation():
        nothing, half, same = scorer.verdicts(make_questions(bare, choices, None, tokenizer))
        (wordless,) = scorer.verdicts(make_questions(WORDS, words, None, tokenizer))
    assert (nothing.correct, nothing.choice, wordless.correct) == (False, None, False)
    assert np.isnan([*nothing.losses, half.losses[0], *wordless.losses]).all()
    assert (half.correct, half.choice) == (False, 1)
    assert (same.correct, same.choice) == (True, 0)  # of equally good options the first
