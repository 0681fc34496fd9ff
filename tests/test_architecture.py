"""The promises of the layout: flows → tasks → model, no jax in flows, no files or network in model."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ("conf", "flows", "tasks", "model")
MAY_IMPORT = {"model": {"model"}, "conf": {"conf", "model"}, "tasks": {"tasks", "conf", "model"}, "flows": set(LAYERS)}
IMPURE = {
    "os", "io", "pathlib", "shutil", "tempfile", "glob", "subprocess", "socket", "urllib", "http", "requests", "httpx",
    "aiohttp", "fsspec", "gcsfs", "prefect", "hydra", "omegaconf", "pickle", "orbax", "pyarrow", "safetensors",
}  # fmt: skip


def sources(layer: str) -> list[Path]:
    return sorted((ROOT / layer).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Dotted names of all modules that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively: write the whole name"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_one_way(layer):
    for path in sources(layer):
        reached = {name.split(".")[0] for name in imports(path)} & set(LAYERS)
        assert reached <= MAY_IMPORT[layer], f"{path.relative_to(ROOT)} imports {reached - MAY_IMPORT[layer]}"


def test_model_touches_no_files_network_prefect_or_hydra():
    for path in sources("model"):
        impure = {name.split(".")[0] for name in imports(path)} & IMPURE
        assert not impure, f"{path.relative_to(ROOT)} imports {impure}"
        calls = [n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Call)]
        opened = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "open"]
        assert not opened, f"{path.relative_to(ROOT)} opens a file"


def test_flows_never_import_jax():
    modules = [f"flows.{path.stem}" for path in sources("flows") if path.stem != "__init__"]
    code = f"import sys, importlib; [importlib.import_module(m) for m in {modules}]; sys.exit('jax' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120, capture_output=True, text=True)
    assert finished.returncode == 0, f"importing flows imports jax\n{finished.stderr}"


def test_the_recipe_name_never_decides():
    for layer in LAYERS:
        for path in sources(layer):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.If | ast.IfExp | ast.Match):
                    condition = node.subject if isinstance(node, ast.Match) else node.test
                    assert "recipe.name" not in ast.unparse(condition), f"{path.relative_to(ROOT)}:{node.lineno}"


def test_every_module_says_what_it_promises():
    for layer in LAYERS:
        for path in sources(layer):
            assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{path.relative_to(ROOT)}"


def test_files_stay_short():
    long = {str(p.relative_to(ROOT)): n for layer in LAYERS for p in sources(layer) if (n := lines(p)) > 450}
    assert not long, f"past 450 lines a file is usually two ideas: {long}"


def lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def test_nothing_committed_names_a_machine_or_a_download_address():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=30).stdout.split()
    machine = ["/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/"]
    address = ["pypi" + ".org", "pythonhosted" + ".org", "huggingface" + ".co/", "storage.googleapis" + ".com"]
    for name in listed:
        path = ROOT / name
        if path.suffix in (".npz", ".png") or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        found = [word for word in machine + address if word in text]
        assert not found, f"{name} names {found}"
