"""The report renders what it is given, and nothing that it is given can break its tables or its page."""

import json

import pytest

from tasks.plots import training_curves
from tasks.report import duration, markdown_cell, number, write
from tasks.report_data import Page, StageRow, answered_right, changes, comparable, core_rows, length_notes

HISTORY = [{"step": 0, "val_bpb": 4.0}, {"step": 1, "loss": 5.0}, {"step": 2, "loss": 4.0, "val_bpb": 3.0}]
NASTY = "<script>alert(1)</script> | a\nb"


def page(**more):
    scores = {"core": 0.5, "ci95": [0.4, 0.6], "tasks": {"homes": {"accuracy": 0.7, "centered": 0.6, "n": 10}}}
    judged = {"text": NASTY, "judges": [{"name": "stops", "passed": True}, {"name": "contains", "passed": False}]}
    fields = {
        "title": "Encore",
        "name": "rehearsal",
        "headline": {"CORE, base": 0.5, "last val bpb": None},
        "stages": [StageRow("base", "abc", "run", 95.2, 2, 3_000_000, 0.25)],
        "cost": 0.25,
        "price": "v6e-8: 8 × US$ 1.35",
        "facts": {"base": {"tokens": 1000, "mfu": None}},
        "histories": {"base": HISTORY, "sft": HISTORY},
        "core": core_rows(scores, scores, {"gpt2-xl": {"homes": 0.1, "core": 0.257}}),
        "references": ["gpt2-xl"],
        "chat": [{"task": "facts", "base": {"accuracy": 0.1}, "sft": {"accuracy": 0.9, "n": 10, "ci95": [0.8, 1.0]}}],
        "prompts": [{"prompt": NASTY, "base": judged, "sft": judged}],
        "samples": [{"step": 2, "prompt": "Once", "text": NASTY}],
        "notes": ["3 prompts were cut"],
    }
    return Page(**fields | more)


@pytest.fixture
def rendered(tmp_path):
    shown = page()
    training_curves(shown.histories, tmp_path / "curves.png")
    write(shown, tmp_path / "curves.png", tmp_path)
    return (tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()


def test_the_page_is_self_contained_and_escapes_what_models_say(rendered):
    html, _ = rendered
    assert "data:image/png;base64," in html
    assert "<script>" not in html
    assert 'src="http' not in html


def test_scores_stages_prices_and_references_are_shown(rendered):
    for text in rendered:
        for word in ("CORE, base", "gpt2-xl", "0.257", "1 min 35 s", "0.25", "homes", "✓ stops", "✗ contains", "Once"):
            assert word in text, word


def test_every_row_of_a_markdown_table_has_the_cells_of_its_head(rendered):
    _, markdown = rendered
    columns = 0
    for line in markdown.splitlines():
        cells = line.replace("\\|", "").count("|")
        if line.startswith("|"):
            columns = columns or cells
            assert cells == columns, line
        else:
            columns = 0


def test_numbers_and_durations_are_short():
    assert [number(x) for x in (None, 0.123456, 12345, 1234567.0, "text")] == [
        "–",
        "0.1235",
        "12,345",
        "1,234,567",
        "text",
    ]
    assert [duration(s) for s in (3.21, 95.2, 7260)] == ["3.2 s", "1 min 35 s", "2 h 01 min"]
    assert markdown_cell("a|b\n<c>") == "a\\|b &lt;c>"


def test_the_share_of_right_answers_counts_questions_not_tasks():
    chat = {"tasks": {"a": {"n": 90, "accuracy": 1.0}, "b": {"n": 10, "accuracy": 0.0}}}
    assert answered_right(chat) == pytest.approx(0.9)
    assert answered_right({"tasks": {}}) is None


def test_answers_that_changed_since_the_previous_run_are_shown(tmp_path):
    def results(text, passed):
        said = {"text": text, "judges": [{"name": "stops", "passed": passed}]}
        return {"prompts": [{"id": "general/coffee", "base": {"text": "a", "judges": []}, "sft": said}]}

    (tmp_path / "results.json~2").write_text(json.dumps(results("| loop", False)))  # as a second attempt stores it
    before = {"key": "feed" * 16, "results": str(tmp_path / "results.json~2")}
    shown = page(**changes(results("Grind the beans.", True), before))
    training_curves(shown.histories, tmp_path / "curves.png")
    write(shown, tmp_path / "curves.png", tmp_path)
    html, markdown = (tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()
    for text in (html, markdown):
        for word in ("Answers that changed", "feedfeedfeed", "Grind the beans.", "✗ → ✓ stops"):
            assert word in text, word
    assert "| general/coffee | SFT | \\| loop | Grind the beans.<br>✗ → ✓ stops |" in markdown
    same = page(**changes(results("x", True), None))
    assert (same.previous, same.changes) == (None, [])


def test_published_scores_stand_beside_the_same_tasks_only():
    published = {"gpt2": {"core": 0.1, "copa": 0.2, "squad": 0.0}}
    assert comparable(published, {"copa": {}, "squad": {}}) == published
    assert comparable(published, {"copa": {}}) == {"gpt2": {"copa": 0.2}}
    assert comparable(published, {"homes": {}}) == {}


def test_prompts_longer_than_the_context_are_told():
    whole, cut = {"n": 20, "truncated": 0, "over_context": 15}, {"n": 10, "truncated": 4, "over_context": 4}
    assert length_notes("core_sft", [whole, {"n": 5}]) == [
        "core_sft: 15 of 25 prompts were longer than the model's context and scored whole, past what it was trained on."
    ]
    assert length_notes("core_sft", [whole, cut])[0].endswith("and cut on the left.")
    assert length_notes("core_sft", [{"n": 5}]) == []
