"""A foreign package of one of our names is refused at `import backedge`, by its path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from backedge.shadow import ImportShadowError, check_own_packages

ROOT = Path(__file__).resolve().parents[2]


def import_backedge(script: str, *search: Path) -> subprocess.CompletedProcess[str]:
    """Runs `script` in a fresh interpreter that finds packages in `search` first and the checkout last."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*search, ROOT)))}
    # -W error: the guard itself must not warn.
    command = [sys.executable, "-W", "error", "-P", "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/")


@pytest.mark.slow
def test_own_packages_pass():
    result = import_backedge("import backedge, graphs, sys; print(graphs.__file__)")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(ROOT / "graphs" / "__init__.py")


@pytest.mark.slow
def test_names_come_from_here_also_if_a_foreign_package_gets_in_front_later(tmp_path: Path):
    for name in ("graphs", "recovery", "engine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('a foreign package was run')\n")
    names = "backedge.run, backedge.Flow, backedge.StoreError"
    result = import_backedge(f"import backedge, sys; sys.path.insert(0, {str(tmp_path)!r}); print([{names}])")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", ["graphs", "recovery", "engine"])
def test_foreign_package_first_on_the_path_is_named(tmp_path: Path, name: str):
    foreign = tmp_path / name
    foreign.mkdir()
    (foreign / "__init__.py").write_text("raise SystemExit('a foreign package was run')\n")
    result = import_backedge("import backedge", tmp_path)
    assert result.returncode == 1
    assert "ImportShadowError" in result.stderr
    assert f"own package '{name}' at {ROOT / name}" in result.stderr
    assert f"a foreign one: {foreign}." in result.stderr
    assert f"Rename it, or take {tmp_path} off sys.path" in result.stderr


def test_foreign_module_in_a_single_file_is_named(tmp_path: Path):
    (tmp_path / "engine.py").write_text("raise SystemExit('a foreign module was run')\n")
    result = import_backedge("import backedge", tmp_path)
    assert result.returncode == 1
    assert f"a foreign one: {tmp_path / 'engine.py'}." in result.stderr


def test_foreign_package_that_was_imported_before_is_named(tmp_path: Path):
    (tmp_path / "graphs").mkdir()
    (tmp_path / "graphs" / "__init__.py").touch()
    result = import_backedge(f"import graphs, sys; sys.path.remove({str(tmp_path)!r}); import backedge", tmp_path)
    assert result.returncode == 1
    assert f"a foreign one: {tmp_path / 'graphs'}." in result.stderr


def test_missing_package_is_named_with_the_place_where_it_belongs(tmp_path: Path):
    """An incomplete installation: backedge is there, a package that it builds on is not."""
    with pytest.raises(ImportShadowError) as refusal:
        check_own_packages(tmp_path, ["a_package_that_is_not_there"])
    assert "Python finds none of that name" in str(refusal.value)
    assert f"it belongs at {tmp_path / 'a_package_that_is_not_there'}." in str(refusal.value)
    assert "pip install --force-reinstall backedge" in str(refusal.value)


def test_package_without_an_init_file_shadows_too(tmp_path: Path):
    """A plain folder hides an editable installation, whose packages are found last."""
    (tmp_path / "plain_folder").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        with pytest.raises(ImportShadowError, match="a foreign one: ") as refusal:
            check_own_packages(ROOT, ["plain_folder"])
    assert str(tmp_path / "plain_folder") in str(refusal.value)
