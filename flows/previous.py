"""The run before this one: its answers to the qualitative prompts, which the report compares with."""

from tasks.store import Artifact, Store
from tasks.store.gather import parallel
from tasks.store.manifest import Damaged


def previous_prompts(store: Store, name: str, prompts: Artifact) -> dict[str, str] | None:
    """Key of the prompts in the newest report of a run called `name` that had other ones, and where their results lie.

    None where there is no such report; damaged or deleted artifacts of earlier runs count as absent.
    """
    found = [m for m in parallel(lambda key: store.sound_manifest("report", key), store.keys("report")) if m]
    earlier = [m for m in found if m.config.get("name") == name and m.inputs["prompts"]["key"] != prompts.key]
    for manifest in sorted(earlier, key=lambda m: m.finished_at, reverse=True):
        key = manifest.inputs["prompts"]["key"]
        try:
            if artifact := store.lookup("prompts", key):
                return {"key": key, "results": str(artifact.path("results.json"))}
        except Damaged:
            continue
    return None
