"""One attempt to make an artifact: lease, adopt, run, commit. The same in a child process and in a test."""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tasks import stage as stages
from tasks.hosts.job import Job
from tasks.hosts.meeting import met
from tasks.stage import InputError, StopSignal
from tasks.store import keys, provenance, sources
from tasks.store import manifest as manifests
from tasks.store.artifact import Artifact
from tasks.store.events import Events
from tasks.store.lease import Lease, LeaseLost
from tasks.store.manifest import Damaged, Manifest
from tasks.store.roots import StoreUnavailable
from tasks.store.secrets import redact
from tasks.store.store import Located, Store
from tasks.store.view import ConfigView
from tasks.store.workspace import Workspace, clear_leftovers


def make(
    stage_name: str,
    config: Any,
    inputs: Mapping[str, Artifact],
    store: Store,
    *,
    events: Events,
    stop: StopSignal,
    run_info: Mapping[str, Any] | None = None,
    on_lost: Callable[[str], None] | None = None,
    job: Job | None = None,
) -> Artifact:
    """The finished artifact of the stage, made here unless somebody else made it meanwhile.

    `on_lost` is called from a thread when another owner took the key, or when a process of `job`, whose first one this
    is, left in the middle of the work. Raises what `run` raises, and LeaseLost, StoreUnavailable, InputError of the
    store, Absent naming who of the job did not come.
    """
    stage, run = stages.load(stage_name)
    input_keys = {role: artifact.key for role, artifact in inputs.items()}
    config_read = keys.config_fields(stage, config)
    located = store.locate(stage_name, config, input_keys)
    where = f"{stage.name}/{located.key}"
    reads = [made.where for made in inputs.values()]
    lease = Lease(store.root, where, seconds=store.lease_seconds, clock=store.clock, inputs=reads)
    lease.acquire(stop, events.log)
    lease.start(on_lost or stop.request)
    finished = False
    try:
        made = _usable(store, located, events)
        if made is None:
            path = store.work_directory(where) / f"{lease.token:06d}"
            out = Workspace(store.root, where, lease, path, events, stop, dict(run_info or {}))
            out.adopt(stage.resumable)
            hosts = job and replace(job, key=where)
            wait = 60 * config.hardware.hosts.start_minutes
            with met(hosts, wait, lease.token, stop, on_lost or stop.request) as out.meeting:
                metrics = run(ConfigView(config, stage), inputs, out)
            if keys.config_fields(stage, config) != config_read:
                raise InputError(f"A local file that stage '{stage.name}' reads was changed meanwhile: run it again.")
            code = sources.cached_closure(stages.module_name(stage_name))
            manifest = Manifest(
                stage=stage.name,
                version=stage.version,
                key=located.key,
                config=config_read,
                inputs={role: {"stage": source.stage, "key": source.key} for role, source in sorted(inputs.items())},
                files={},
                metrics=_plain(metrics, "metrics", events),
                wall_seconds=round(lease.held(), 3),
                attempts=lease.token,
                finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
                source=sources.combined(code),
                sources=dict(code),
                strict_code=located.strict,
                commit=provenance.commit(),
                packages=provenance.packages(),
                device=provenance.device(config.hardware),
                run_info=_plain(out.run_info, "run_info", events),
            )
            _commit(out, manifest)
            out.tidy()
            made = store.artifact(stage.name, located.key)
        finished = True
        return made
    except OSError:  # an heir on this machine may have removed the directory of this attempt: that says more
        with suppress(StoreUnavailable):
            lease.confirm()
        raise
    finally:
        lease.release(remove=finished)


def _usable(store: Store, located: Located, events: Events) -> Artifact | None:
    """The artifact if somebody finished it; a damaged one is dropped, with a message, and made again."""
    where = f"{located.stage}/{located.key}"
    try:
        made = store.lookup(located.stage, located.key)
    except Damaged as error:
        events.log(f"{error} It is dropped and made again now.")
        store.root.delete([f"{where}/{manifests.NAME}"])
        return None
    if made:
        clear_leftovers(store.root, where, {entry.path for entry in made.manifest.files.values()})
    return made


def _commit(out: Workspace, manifest: Manifest) -> None:
    try:
        out.commit(manifest)
    except FileExistsError as error:
        raise LeaseLost(f"{manifest.stage}/{manifest.key} was finished by another owner.") from error


def _plain(value: Any, where: str, events: Events) -> Any:
    """`value` as JSON without secrets. A number that is not finite becomes null, and the log says so.

    Lenient on purpose: this comes after the work, which a stray NaN or NumPy scalar must not throw away.
    """
    if hasattr(value, "tolist"):  # of NumPy or JAX
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        events.log(f"{where} is {value}; the manifest holds null instead")
        return None
    if isinstance(value, Mapping):
        return {str(name): _plain(item, f"{where}.{name}", events) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{index}]", events) for index, item in enumerate(value)]
    return redact(value) if isinstance(value, str) else value
