"""The report compares with the newest run of the same name that had other prompts."""

import json
from dataclasses import replace

from conf.compose import compose
from flows.previous import previous_prompts
from tasks.store import Store
from tasks.store.inline import run_inline

PROMPTS, REPORT = "tests.flows.stages.prompts", "tests.flows.stages.report"


def test_the_newest_other_prompts_of_that_name_are_found(tmp_path):
    store = Store(tmp_path / "store", cache_dir=tmp_path / "cache")

    def made(seed, name="cycle"):
        config = replace(compose([]), seed=seed, name=name)
        prompts = run_inline(PROMPTS, config, {}, store)
        run_inline(REPORT, config, {"prompts": prompts}, store)
        return prompts

    first = made(1)
    assert previous_prompts(store, "cycle", first) is None
    second, _other = made(2), made(3, name="another")
    assert previous_prompts(store, "cycle", second)["key"] == first.key
    third = made(4)
    found = previous_prompts(store, "cycle", third)
    assert found["key"] == second.key
    with open(found["results"]) as file:
        assert json.load(file) == {"seed": 2}
    second.path("results.json").write_text("damaged")
    assert previous_prompts(store, "cycle", third)["key"] == first.key
