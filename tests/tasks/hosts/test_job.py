"""Who takes part in a job: from the config, from the environment, from what a TPU slice tells its machines."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from conf.compose import compose
from conf.errors import ConfigError
from conf.schema import Hosts
from tasks.hosts.job import Job, find
from tasks.stage import InputError

AUTO = Hosts(names="auto")
PAIR = Hosts(names=["a", "b"])


@pytest.mark.parametrize(
    ("hosts", "environment", "job"),
    [
        (Hosts(), {"TPU_WORKER_HOSTNAMES": "t0,t1", "TPU_WORKER_ID": "1"}, None),  # nothing unless it is asked for
        (Hosts(names=["a"]), {}, None),
        (AUTO, {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}, None),
        (PAIR, {"ENCORE_RANK": "1"}, Job(("a", "b"), 1, "a", 8476)),
        (Hosts(names=["a", "b"], port=9000), {"ENCORE_RANK": "0"}, Job(("a", "b"), 0, "a", 9000)),
        (AUTO, {"TPU_WORKER_HOSTNAMES": "t0,t1", "TPU_WORKER_ID": "1"}, Job(("t0", "t1"), 1, "t0", 8476)),
    ],
)
def test_the_job_is_what_the_config_names_and_the_environment_ranks(hosts, environment, job):
    assert find(hosts, environment) == job


@pytest.mark.parametrize("rank", [None, "2", "-1", "one"])
def test_a_wrong_rank_is_one_sentence(rank):
    environment = {} if rank is None else {"ENCORE_RANK": rank}
    with pytest.raises(InputError, match=r"ENCORE_RANK is .* from 0 \(a\) to 1 \(b\)"):
        find(PAIR, environment)


@pytest.mark.parametrize("endpoints", ["10.0.0.2,10.0.0.3", "unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3"])
def test_a_tpu_vm_asks_its_metadata_server(endpoints):
    told = {"worker-network-endpoints": endpoints, "agent-worker-number": "1"}

    class Metadata(BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.headers["Metadata-Flavor"] == "Google"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(told[self.path.rpartition("/computeMetadata/v1/instance/attributes/")[2]].encode())

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"127.0.0.1:{server.server_port}"
        assert find(AUTO, {"GCE_METADATA_HOST": address}) == Job(("10.0.0.2", "10.0.0.3"), 1, "10.0.0.2", 8476)
    finally:
        server.shutdown()
        server.server_close()


def test_auto_outside_of_a_slice_says_how_to_name_the_hosts():
    with pytest.raises(InputError, match=r"does not answer .* 'hardware.hosts.names=\[host-a,host-b\]'"):
        find(AUTO, {"GCE_METADATA_HOST": "127.0.0.1:9"})


def test_hosts_are_words_of_the_command_line():
    assert compose(["hardware.hosts.names=auto"]).hardware.hosts == AUTO
    assert compose(["hardware.hosts.names=[a,b]"]).hardware.hosts == PAIR
    assert compose([]).hardware.hosts == Hosts()
    with pytest.raises(ConfigError, match=r"hardware\.hosts\.port"):
        compose(["hardware.hosts.port=0"])
