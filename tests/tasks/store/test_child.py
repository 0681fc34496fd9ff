"""A stage in its own process: how it ends, and that nothing of it stays behind."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tasks.store import StageFailed, StagePreempted, StageRefused, Store, run_inline, run_stage
from tasks.store.lease import process_identity
from tasks.store.sources import PROJECT
from tests.tasks.store.conftest import TOY


class Watch:
    """A listener that keeps events and acts on the first progress."""

    def __init__(self, on_progress=None):
        self.events, self.first = [], threading.Event()
        self._act = on_progress

    def __call__(self, event):
        self.events.append(event)
        if event["kind"] == "progress" and event["step"] == 3 and self._act:
            act, self._act = self._act, None
            threading.Timer(0.2, act).start()  # by then the stage waits
        self.first.set()

    def messages(self, kind):
        return [event["message"] for event in self.events if event["kind"] == kind]


def words(tmp_path, *more):
    return [*more, f"marks:{tmp_path}"]


def stages_of(parent):
    """Process ids of the stages that the process `parent` runs."""
    listing = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listing.splitlines()]
    return [int(pid) for pid, ppid, args in rows if int(ppid) == parent and "-m tasks.store.child" in args]


def test_a_stage_runs_in_another_process_and_a_finished_one_starts_none(store, config):
    watch = Watch()
    made = run_stage(TOY, config(seed=4), {}, store, on_event=watch)
    assert made.path("whole.txt").read_text().startswith("4 0")
    assert [event["step"] for event in watch.events if event["kind"] == "progress"] == [1, 2, 3, 4, 5]
    assert watch.messages("output") == ["written"]
    again = Watch()
    assert run_stage(TOY, config(seed=4), {}, store, on_event=again).key == made.key
    assert again.events == []


def test_a_killed_stage_is_a_failure_and_continues_where_it_was(store, config, tmp_path):
    made = config(words=words(tmp_path, "kill:2"))
    with pytest.raises(StageFailed, match="ended by SIGKILL"):
        run_stage(TOY, made, {}, store, on_event=Watch())
    watch = Watch()
    assert run_stage(TOY, made, {}, store, on_event=watch).manifest.attempts == 2
    assert watch.messages("log") == [f"parts/{i}.txt kept" for i in range(3)]


@pytest.mark.parametrize(
    ("word", "error", "sentence"),
    [
        ("refuse", StageRefused, "data.paths names nothing that exists"),
        ("fail", StageFailed, "failed with status 1: RuntimeError: a bug"),
    ],
)
def test_errors_come_back_as_one_sentence(store, config, word, error, sentence):
    with pytest.raises(error, match=sentence) as caught:
        run_stage(TOY, config(words=[word]), {}, store, on_event=Watch())
    assert "\n" not in str(caught.value)
    if error is StageFailed:
        assert "about to fail" in caught.value.output
        assert "Traceback" in caught.value.output


def test_ctrl_c_in_the_parent_saves_and_takes_its_usual_course(store, config, tmp_path):
    made = config(words=words(tmp_path, "wait:2"))
    watch = Watch(lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        run_stage(TOY, made, {}, store, on_event=watch)
    assert watch.messages("stopped") == ["stopped after a stop from the parent process"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    again = Watch()
    run_stage(TOY, made, {}, store, on_event=again)
    assert again.messages("log") == [f"parts/{i}.txt kept" for i in range(3)]


def test_sigterm_to_the_child_is_a_preemption(store, config, tmp_path):
    made = config(words=words(tmp_path, "wait:2"))

    def terminate():
        for pid in stages_of(os.getpid()):
            os.kill(pid, signal.SIGTERM)

    with pytest.raises(StagePreempted, match=r"stopped after SIGTERM\. The same command continues it\."):
        run_stage(TOY, made, {}, store, on_event=Watch(terminate))


def test_a_stage_that_does_not_leave_is_ended_at_the_deadline(store, config, tmp_path):
    made = config(words=words(tmp_path, "wait:2", "linger:60"))
    watch = Watch(lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        run_stage(TOY, made, {}, store, on_event=watch, grace_seconds=0.5)
    assert "not finished" in watch.messages("stopped")[0]
    again = Watch()
    assert run_stage(TOY, made, {}, store, on_event=again).manifest.attempts == 2


def test_a_second_signal_ends_it_at_once(store, config, tmp_path):
    made = config(words=words(tmp_path, "wait:2", "linger:60"))

    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    watch = Watch(twice)
    with pytest.raises(KeyboardInterrupt):
        run_stage(TOY, made, {}, store, on_event=watch)
    assert "stopped at once: a stop from the parent process again" in watch.messages("stopped")[0]


def test_the_clouds_notice_stops_a_stage(store, config, tmp_path):
    from dataclasses import replace

    answer = b"FALSE"

    class Metadata(BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.headers["Metadata-Flavor"] == "Google"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def give_notice():
        nonlocal answer
        answer = b"TRUE"

    made = config(words=words(tmp_path, "wait:2"))
    address = f"http://127.0.0.1:{server.server_port}/computeMetadata/v1/instance/preempted"
    made = replace(made, hardware=replace(made.hardware, preemption_notice=address))
    with pytest.raises(StagePreempted, match="the cloud's preemption notice"):
        run_stage(TOY, made, {}, store, on_event=Watch(give_notice))
    server.shutdown()


def test_a_killed_parent_leaves_no_stage_behind(store, config, tmp_path):
    code = (
        "import sys, dataclasses; from conf.compose import compose; from tasks.store import Store, run_stage; "
        "c = compose([]); c = dataclasses.replace(c, data=dataclasses.replace(c.data, paths=sys.argv[3:])); "
        f"run_stage({TOY!r}, c, {{}}, Store(sys.argv[1], cache_dir=sys.argv[2], lease_seconds=5))"
    )
    marks = words(tmp_path, "wait:2")
    command = [sys.executable, "-c", code, store.root.url, str(store.cache_dir), *marks]
    parent = subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE, text=True)
    for line in parent.stderr:
        if "step=3" in line:
            break
    [child] = stages_of(parent.pid)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 60
    while process_identity(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert process_identity(child) is None
    told = []
    made = run_inline(TOY, config(words=marks), {}, store, on_event=told.append)
    assert made.manifest.attempts == 2
    assert "parts/2.txt kept" in [event.get("message") for event in told]


def test_a_frozen_owner_wakes_up_and_leaves_without_writing(store, config, tmp_path):
    """SIGSTOP for longer than the lease, another run takes the key and finishes, SIGCONT: the first writes nothing."""
    hasty = Store(store.root.url, cache_dir=store.cache_dir, lease_seconds=1)
    made = config(words=words(tmp_path, "wait:2"))
    frozen = []

    def freeze():
        frozen.extend(stages_of(os.getpid()))
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)

    outcome = []

    def first():
        try:
            run_stage(TOY, made, {}, hasty, on_event=Watch(freeze))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    while not frozen:
        time.sleep(0.05)
    second = run_inline(TOY, made, {}, hasty)
    before = store.root.find("")
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    thread.join(60)
    assert isinstance(outcome[0], StagePreempted)
    assert "has another owner now" in str(outcome[0])
    assert store.root.find("") == before
    second.verify()


def test_two_runs_that_want_the_same_key_make_it_once(store, config, tmp_path):
    made = config(words=words(tmp_path, "pause:0.2"))
    watches, found = [Watch(), Watch()], []
    threads = [
        threading.Thread(target=lambda w=watch: found.append(run_stage(TOY, made, {}, store, on_event=w)))
        for watch in watches
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({artifact.key for artifact in found}) == 1
    assert found[0].manifest.attempts == 1
    told = [watch.messages("log") for watch in watches]
    assert sorted(len(watch.messages("output")) for watch in watches) == [0, 1]
    assert any("holds the lease of this key; waiting for it" in line for lines in told for line in lines)


def test_a_listener_that_fails_lets_the_stage_save(store, config, tmp_path):
    made = config(words=words(tmp_path, "wait:2"))

    def listen(event):
        if event["kind"] == "progress" and event["step"] == 3:
            raise BrokenPipeError("nobody reads")

    with pytest.raises(BrokenPipeError):
        run_stage(TOY, made, {}, store, on_event=listen)
    told = []
    run_inline(TOY, made, {}, store, on_event=told.append)
    assert "parts/2.txt kept" in [event.get("message") for event in told]


def test_events_are_lines_of_json(store, config):
    reader, writer = os.pipe()
    from tasks.store.events import Events, to_descriptor

    Events(to_descriptor(writer)).progress(step=1, loss=2.5)
    os.close(writer)
    assert json.loads(os.read(reader, 1000)) == {"kind": "progress", "step": 1, "loss": 2.5}
    os.close(reader)
