"""What a stage is made of, and reading its declaration without importing it."""

import subprocess
import sys

import pytest

from tasks import stage as stages
from tasks.stage import InputError
from tasks.store import sources
from tests.tasks.store import toy


@pytest.fixture
def project(tmp_path):
    files = {
        "tasks/__init__.py": "",
        "tasks/one.py": "import os\nfrom tasks.helper import thing\n\ndef late():\n    from model import deep\n",
        "tasks/helper.py": "from model.deep import x\nimport conf.schema as s\n",
        "tasks/other.py": "",
        "model/deep.py": "x = 1\n",
        "conf/__init__.py": "",
        "conf/schema.py": "",
        "flows/cycle.py": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_the_closure_is_transitive_and_holds_nothing_else(project):
    assert set(sources.closure("tasks.one", project=project)) == {
        "tasks/__init__.py",
        "tasks/one.py",
        "tasks/helper.py",
        "model/deep.py",
        "conf/__init__.py",
        "conf/schema.py",
    }


def test_a_change_far_away_shows_by_name(project):
    before = sources.closure("tasks.one", project=project)
    (project / "model/deep.py").write_text("x = 2\n")
    (project / "tasks/other.py").write_text("y = 2\n")
    after = sources.closure("tasks.one", project=project)
    assert sources.changed(before, after) == ["model/deep.py"]
    assert sources.combined(before) != sources.combined(after)


def test_relative_imports_are_followed(project):
    (project / "tasks/one.py").write_text("from . import other\nfrom .helper import thing\n")
    assert {"tasks/other.py", "model/deep.py"} <= set(sources.closure("tasks.one", project=project))


def test_a_declaration_is_read_without_importing_the_stage():
    assert stages.declaration("tests.tasks.store.toy") == toy.STAGE
    code = (
        "import sys; from tasks import stage; "
        "[stage.declaration(name) for name in ('base', 'report')]; sys.exit('jax' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=sources.PROJECT, check=True)


@pytest.mark.parametrize("name", ["tokeniser", "tasks.nothing", "tasks.stage"])
def test_an_unknown_stage_is_one_sentence(name):
    with pytest.raises(InputError):
        stages.declaration(name)
