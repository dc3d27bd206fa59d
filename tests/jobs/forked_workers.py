"""Worker processes for the Ray that tests share, forked from a process that has imported everything they need.

A worker of Ray imports Ray, and ours the engine: nine tenths of the processor time of a short run on Ray, and tests
start more than a thousand workers. Here Ray starts a small program instead of Python. It hands its arguments,
environment and open files to the template, which forks; the child is a worker like any other. Everything else that Ray
starts is started as usual. Workers of another driver have another environment, which Ray's C++ reads once, when it is
imported: the first template starts one for each environment, and sends the program there.

Rays that tests start for themselves, such as those of submitted jobs, fork nothing: they show what users run.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import FrameType

MODULES = (
    "ray._private.workers.default_worker",
    "pytest",
    "backedge",
    "backedge.engine.on_ray.actor.task_host",
    "backedge.engine.on_ray.supervisor.supervising",
    "backedge.engine.on_ray.supervisor.supervisor_actor",
    # What workers import when they have something to do: when they send their first answer, for example.
    "ray._common.usage.usage_lib",
    "ray._private.arrow_serialization",
    "pyarrow.compute",
    "pyarrow.json",
    "pyarrow.parquet",
    "backedge.faults",
    "backedge.engine.on_ray.supervisor.job_supervising",
)
ROOT = Path(__file__).resolve().parents[2]
REQUEST_BYTES = 1 << 20
TITLE = " " * 300
"""An argument of the template that it does not use: the title of a process has the room that its arguments had."""

PROGRAM = """#!{python} -IS
import os, sys
python, arguments, environment = {python!r}, sys.argv[1:], dict(os.environ)
if arguments[0].endswith("/default_worker.py"):
    import json, socket
    request, answer = json.dumps([arguments, environment, os.getcwd()]).encode(), {address!r}
    while answer.startswith("/"):
        template = socket.socket(socket.AF_UNIX)
        template.connect(answer)
        socket.send_fds(template, [len(request).to_bytes(8, "big") + request], [0, 1, 2])
        answer = template.recv({answer_bytes}).decode() or "1"
    code = int(answer)
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)
os.execv(python, [python, *arguments])
"""
ANSWER_BYTES = 108
"""The maximum size of an answer: an exit code, or the address of the template for this environment."""


class ForkedWorkers:
    """The template and the program that Ray has to start instead of Python, in a folder with a short path."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.python = os.path.join(folder, "python")
        address = os.path.join(folder, "template")
        # It ends when this process does: then its input ends.
        self._template = start_template(address, subprocess.PIPE)
        program = PROGRAM.format(python=sys.executable, address=address, answer_bytes=ANSWER_BYTES)
        Path(self.python).write_text(program)
        Path(self.python).chmod(0o700)

    def end(self) -> None:
        """End the templates."""
        self._template.communicate()


def start_template(address: str, stdin: int | None) -> subprocess.Popen[bytes]:
    """Start a template at this address, where workers may ask at once. It ends when its input does."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        return subprocess.Popen(
            [sys.executable, __file__, str(listener.fileno()), TITLE],
            stdin=stdin,
            pass_fds=[listener.fileno()],
            # What is in the module's folder is not at the top for others; and titles leave the environment alone.
            env={**os.environ, "PYTHONSAFEPATH": "1", "SPT_NOENV": "1"},
            cwd=ROOT,
        )


class Template:
    """Forks a worker for each request. The first one's environment is the template's, before it imports Ray.

    For every other environment it starts another template.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._environment: dict[str, str] = {}
        self._others: list[tuple[dict[str, str], str, subprocess.Popen[bytes]]] = []
        """The templates of other environments: the environment, the address, and the process."""
        self._waiting: dict[int, socket.socket] = {}
        """Who waits for the end of which worker."""

    def serve(self) -> None:
        """Fork workers until the input ends."""
        ended, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, _do_nothing)
        while True:
            ready, _, _ = select.select([sys.stdin, ended, self._listener], [], [])
            if sys.stdin in ready:
                return
            if ended in ready:
                os.read(ended, REQUEST_BYTES)
                self._report_ended()
            if self._listener in ready:
                asking, _ = self._listener.accept()
                request, files, _, _ = socket.recv_fds(asking, REQUEST_BYTES, 3)
                size = 8 + int.from_bytes(request[:8], "big")
                while len(request) < size:
                    request += asking.recv(size - len(request))
                self._answer(asking, files, *json.loads(request[8:]))

    def _answer(
        self, asking: socket.socket, files: list[int], arguments: list[str], environment: dict[str, str], folder: str
    ) -> None:
        if not self._environment:
            self._environment = environment
            os.environ.clear()
            os.environ.update(environment)
            for name in MODULES:
                import_module(name)
            public = import_module("backedge")
            for name in public.__all__:
                getattr(public, name)
            gc.collect()
            gc.freeze()
        if environment == self._environment:
            pid = os.fork()
            if not pid:
                self._become_worker(asking, files, arguments, folder)
            self._waiting[pid] = asking
        else:
            asking.send(self._address_for(environment).encode())
            asking.close()
        for file in files:
            os.close(file)

    def _address_for(self, environment: dict[str, str]) -> str:
        """The address of the template of another environment."""
        for known, address, _ in self._others:
            if known == environment:
                return address
        address = f"{self._listener.getsockname()}-{len(self._others)}"
        # It has the input of this one, and ends when that does.
        self._others.append((environment, address, start_template(address, None)))
        return address

    def _become_worker(self, asking: socket.socket, files: list[int], arguments: list[str], folder: str) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for connection in (self._listener, asking, *self._waiting.values()):
            connection.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.chdir(folder)
        sys.argv[:] = arguments
        runpy.run_path(arguments[0], run_name="__main__")
        sys.exit()

    def _report_ended(self) -> None:
        while self._waiting:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            with self._waiting.pop(pid) as asking:
                try:
                    asking.send(str(os.waitstatus_to_exitcode(status)).encode())
                except BrokenPipeError:
                    continue  # Ray has ended who asked


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Handle a signal, so that it wakes the template."""


def main(arguments: list[str]) -> None:
    """Be the template; the first argument is the number of its listening socket."""
    Template(socket.socket(fileno=int(arguments[0]))).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
