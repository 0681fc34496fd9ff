"""Artifacts that exist once or not at all: keys, manifests, leases, on a local directory or gs://, one child a stage.

store = Store.open("gs://bucket/prefix")
corpus = run_stage("corpus", config, {}, store)
tokenizer = run_stage("tokenizer", config, {"corpus": corpus}, store)
tokenizer.path("tokenizer.json")
"""

from tasks.store.artifact import Artifact
from tasks.store.contents import missing
from tasks.store.directories import Mirrored
from tasks.store.inline import run_inline
from tasks.store.lease import LeaseLost
from tasks.store.manifest import Damaged, Manifest
from tasks.store.parent import StageEnded, StageFailed, StagePreempted, StageRefused, run_stage, stop_children
from tasks.store.roots import StoreUnavailable
from tasks.store.store import Located, Store
from tasks.store.workspace import Workspace

__all__ = [
    "Artifact",
    "Damaged",
    "LeaseLost",
    "Located",
    "Manifest",
    "Mirrored",
    "StageEnded",
    "StageFailed",
    "StagePreempted",
    "StageRefused",
    "Store",
    "StoreUnavailable",
    "Workspace",
    "missing",
    "run_inline",
    "run_stage",
    "stop_children",
]
