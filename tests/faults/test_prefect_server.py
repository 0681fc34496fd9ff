"""Known failure B13: "database is locked" and slow starts of Prefect's SQLite server, in the way flows use it."""

import contextvars
import threading
from types import SimpleNamespace

import pytest
from prefect import flow, task
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from flows import server as servers

COMMANDS, FLOWS, TASKS = 2, 2, 4


@task(persist_result=False)
def number(value):
    return value


@flow(persist_result=False)
def adding():
    return sum(number(value) for value in range(TASKS))


@pytest.mark.timeout(600)
def test_b13_commands_and_flows_that_start_at_once_share_a_new_database(tmp_path, monkeypatch):
    """Two commands in a fresh PREFECT_HOME, each with a server of its own, run two flows each, all at the same time."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_DATABASE_CONNECTION_URL", raising=False)
    logs = [(tmp_path / f"server-{number}.log").open("w+b") for number in range(COMMANDS)]
    monkeypatch.setattr(servers, "tempfile", SimpleNamespace(TemporaryFile=iter(logs).__next__))
    found = []

    def command():
        with servers.prefect_api():
            at_once([lambda: found.append(adding())] * FLOWS)

    with temporary_settings({PREFECT_HOME: tmp_path}, restore_defaults={PREFECT_API_URL}):
        at_once([command] * COMMANDS)
    assert found == [sum(range(TASKS))] * COMMANDS * FLOWS
    for server in range(COMMANDS):
        assert "database is locked" not in (tmp_path / f"server-{server}.log").read_text()
    assert (tmp_path / "prefect.db").exists()


def at_once(calls):
    """Run the calls in threads that have the settings of this one."""
    threads = [threading.Thread(target=contextvars.copy_context().run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
