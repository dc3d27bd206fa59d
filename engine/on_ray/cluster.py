"""All uses of Ray, with the types that we rely on.

Ray is imported when it is first used. That takes half a second, and flows that are drawn or simulated, and commands
that look at cuts or audit them, do without.
"""

from __future__ import annotations

import logging
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from threading import current_thread, main_thread
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from backedge.engine.on_ray.attaching import (
    ClusterError,
    SeveralClustersError,
    Started,
    TokenRefusedError,
    address_to_join,
    check_address,
    named_address,
    noted_address,
    running_here,
    trusted_users,
)

if TYPE_CHECKING:
    from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError

__all__ = [
    "ActorDiedError",
    "ActorUnavailableError",
    "ClusterError",
    "RayError",
    "RayTaskError",
    "SeveralClustersError",
    "TokenRefusedError",
]

ERRORS = ("ActorDiedError", "ActorUnavailableError", "RayError", "RayTaskError")


class _Ray:
    """The module `ray`, imported when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if "ray" not in sys.modules and current_thread() is main_thread():
            _import_before_signals_act()
        return getattr(import_module("ray"), name)


def _import_before_signals_act() -> None:
    """Import Ray, and let Ctrl-C wait meanwhile: after half an import, each later one in this process would fail."""
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # None: a handler that Python has not installed, and could not put back.
    replaced = {number: handler for number, handler in before.items() if handler is not None}
    for number in replaced:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        import_module("ray")
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


ray: Any = _Ray()


def __getattr__(name: str) -> Any:
    if name in ERRORS:
        return getattr(ray.exceptions, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


Actor = Any
Pending = Any

_DEATH = "A worker died or was killed"
_SERIALIZERS = ("ray._common.pydantic_compat", "ray._private.arrow_serialization")
START_ONE = "start one with `ray start --head`, or name one in RAY_ADDRESS"


class ActorName(NamedTuple):
    """The name of an actor in a namespace of the cluster."""

    name: str
    space: str


class RunSupervisor(NamedTuple):
    """The supervisor of a run, and the random number of the run: the next run of the job may have one of that name."""

    name: ActorName
    run: str


class Needs(NamedTuple):
    """The resources that an actor needs. Tasks need no CPU unless configured: a laptop can run wide graphs.

    `tasks` names the tasks that it will host, for the name of the actor.
    """

    num_cpus: float = 0
    num_gpus: float = 0
    resources: tuple[tuple[str, float], ...] = ()
    tasks: tuple[str, ...] = ()

    @property
    def are_none(self) -> bool:
        """Whether any process will do."""
        return not (self.num_cpus or self.num_gpus or self.resources)

    def told(self) -> str:
        """These needs in words."""
        amounts = {"CPU": self.num_cpus, "GPU": self.num_gpus, **dict(self.resources)}
        return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items() if amount) or "nothing but a process"


def connect(*, must_exist: bool = False) -> None:
    """Use the existing Ray connection, the cluster at RAY_ADDRESS, or the one that this user's `ray start` has noted.

    If there is none, start a local one; or, if it `must_exist`, use one that a process of this user has started here
    for itself. Raises `ClusterError` if that fails.
    """
    if is_connected():
        return
    check_address()
    reaction = signal.getsignal(signal.SIGTERM)
    address = named_address()
    if address is None:
        found = address_to_join(_noted_address(), _running_here if must_exist else tuple)
        if found is not None:
            _check_token(found)
        elif must_exist:
            raise ClusterError(f"this user runs no Ray cluster on this machine: {START_ONE}")
        address = found or "local"
    try:
        ray.init(address=address, logging_level=logging.ERROR, include_dashboard=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        fix = f": {START_ONE}" if must_exist else ""
        raise ClusterError(f"Ray is not available: {first_line(error)}{fix}") from error
    except OSError as error:
        fix = "Ray keeps its sockets in RAY_TMPDIR, or else TMPDIR: name a writable folder with a short path"
        raise ClusterError(f"Ray is not available: {first_line(error)}; {fix}") from error
    except Exception as error:
        if type(error) is not Exception:
            raise
        # Ray has no type for a node that does not come up within half a minute.
        fix = (
            "if this machine is busy, try again later; Ray's log is in ray/session_latest/logs, in RAY_TMPDIR or TMPDIR"
        )
        raise ClusterError(f"Ray did not start: {first_line(error)}; {fix}") from error
    if callable(reaction) and current_thread() is main_thread():
        # Ray has installed its own handler, which it only does in the main thread.
        signal.signal(signal.SIGTERM, reaction)
    _tell_deaths_once()


def _check_token(address: str) -> None:
    """Raise if the cluster that was found refuses this process. Ray itself asks it for minutes, again and again."""
    from ray import _raylet as untyped_core
    from ray._private.authentication import authentication_token_setup as untyped_setup

    logging.getLogger("ray").setLevel(logging.ERROR)
    # For a cluster that it finds, Ray uses the token of this user. It does not if it is given the address.
    cast(Any, untyped_setup).maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    try:
        cast(Any, untyped_core).GcsClient(address=address)
    except ray.exceptions.AuthenticationError as error:
        raise TokenRefusedError(address) from error
    except ray.exceptions.RayError:
        return  # Ray asks again, and reports what is wrong


def _noted_address() -> str | None:
    from ray._common.utils import get_ray_address_file as untyped_file

    return noted_address(cast(Any, untyped_file)(None), trusted_users())


def _running_here() -> Collection[str]:
    """The addresses of all clusters with a process of this user on this machine, noted or not."""
    from ray._private import services as untyped_services

    # Ray brings its own psutil.
    listed = cast(Any, untyped_services).psutil.process_iter(["cmdline", "uids"])
    facts = [process.info for process in listed]
    # A process can be run with another user's rights: who has started it counts.
    started = [Started(tuple(each["cmdline"]), each["uids"].real) for each in facts if each["cmdline"] and each["uids"]]
    return running_here(started, trusted_users())


def runs_here() -> bool:
    """Whether a cluster that this user has noted on this machine is running, even if it refuses us."""
    return _noted_address() is not None


def ends_with_us() -> bool:
    """Whether this process has started the cluster that it is connected to, which then ends with it."""
    from ray._private import worker as untyped_driver

    node = cast(Any, untyped_driver)._global_node
    return node is not None and bool(node.is_head())


def is_connected() -> bool:
    """Whether this process is connected to a cluster."""
    return "ray" in sys.modules and bool(ray.is_initialized())


def address() -> str:
    """The address of the cluster that this process is connected to; empty if it is not."""
    return str(ray.get_runtime_context().gcs_address) if is_connected() else ""


def abandon() -> None:
    """The cluster is gone: let nothing at the end of this process wait for it, until Ray ends it after a minute."""
    from ray._private import worker as untyped_driver

    driver = cast(Any, untyped_driver)
    # Ray reports uncaught errors to the cluster before it shows them. It has no setting for this.
    if sys.excepthook is getattr(driver, "custom_excepthook", None):
        sys.excepthook = driver.normal_excepthook


def disconnect() -> None:
    """Leave the cluster; a local one that we started ends."""
    if "ray" in sys.modules:
        ray.shutdown()


@contextmanager
def left_as_found() -> Generator[None]:
    """At the end, leave the cluster, unless this process was connected to one before."""
    was_connected = is_connected()
    try:
        yield
    finally:
        if not was_connected:
            disconnect()


def _tell_deaths_once() -> None:
    """Silence Ray's messages about dead processes: the run reports them, together with its reaction."""
    from ray._private import worker as untyped_driver

    driver = cast(Any, untyped_driver)
    tell = getattr(driver, "print_to_stdstream", None)

    def tell_others(data: dict[str, Any], **options: Any) -> None:
        if data.get("pid") != "raylet" or not str(data["lines"][0]).startswith(_DEATH):
            cast(Any, tell)(data, **options)

    # Ray has no setting for this. Without this private function, its messages just appear.
    if tell is not None and tell.__name__ != tell_others.__name__:
        driver.print_to_stdstream = tell_others


def task(function: Callable[..., Any], *, returns: int = 1) -> Callable[..., Any]:
    """What calls a function in a process of the cluster, and returns a reference to its result, or several."""
    return ray.remote(function).options(num_cpus=0, num_returns=returns).remote


def on_each_daemon(function: Callable[..., Any], *arguments: Any) -> list[tuple[str, Callable[[], Pending]]]:
    """For each Ray daemon that is alive: the name of its host, and what calls the function in a process there."""
    remote = ray.remote(function)

    def call(daemon: str) -> Callable[[], Pending]:
        placed = remote.options(num_cpus=0, max_retries=0, scheduling_strategy=_at(daemon))
        return lambda: placed.remote(*arguments)

    return [(daemon["NodeManagerHostname"], call(daemon["NodeID"])) for daemon in ray.nodes() if daemon["Alive"]]


def _at(daemon: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(daemon, soft=False)


def near_here() -> Any:
    """Place an actor beside the daemon of this process; elsewhere once that daemon is gone."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(place(), soft=True)


def cpus() -> int:
    return int(ray.cluster_resources().get("CPU", 1))


def machines() -> int:
    """The number of Ray daemons that are alive."""
    return sum(bool(daemon["Alive"]) for daemon in ray.nodes())


def hosts() -> int:
    """The number of hosts that they run on."""
    return len({daemon["NodeManagerHostname"] for daemon in ray.nodes() if daemon["Alive"]})


def pickled(value: Any) -> bytes:
    """Pickle a value for another process, including functions."""
    return ray.cloudpickle.dumps(value)


def adopt_script_classes() -> None:
    """Make the classes of the user's script or notebook findable in this process, after functions were unpickled.

    Functions travel by value, and take such classes along. Records and state refer to a class by name, which is smaller
    and quicker, and the module of that name is `__main__`, which is another one here.
    """
    main = sys.modules["__main__"]
    for kind in list(ray.cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.values()):
        if kind.__module__ == "__main__" and "." not in kind.__qualname__:
            setattr(main, kind.__qualname__, kind)


def name_process(what: str) -> None:
    """Show in lists of processes what this actor is doing, until its method returns."""
    ray._raylet.setproctitle(f"ray::TaskActor({what})")


def place() -> str:
    """The id of the daemon that this process belongs to."""
    return str(ray.get_runtime_context().get_node_id())


def ray_job() -> str:
    """The id of the program that has connected to the cluster; its actors have it as well."""
    return str(ray.get_runtime_context().get_job_id())


def own_address() -> str:
    """The address of this host within the cluster."""
    return str(ray.util.get_node_ip_address())


def is_restarted() -> bool:
    """Whether Ray has started this actor again, because its process died."""
    with warnings.catch_warnings():
        # Ray's property uses another one, which Ray has deprecated; the warning would reach the user's terminal.
        warnings.simplefilter("ignore")
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


def own_log() -> str:
    """The file to which Ray writes the errors of this process; empty if Ray did not start the process."""
    from ray._private.worker import global_worker as untyped_worker

    return str(cast(Any, untyped_worker).get_err_file_path())


def skip_serializers(actor: type) -> None:
    """In a worker that unpickles one of our actors: keep Ray from importing pydantic and pyarrow.

    Ray imports them before the worker reads its first argument, which takes an eighth of the time of a start. With them
    it would pickle fields of pydantic's old models, as FastAPI has them, and slices of Arrow tables without the rest.
    Our calls hold none; a user function that passes such fields through Ray itself would fail, and slices are larger.
    Ray has no setting for this. Without one of these private names, the imports just happen.
    """
    worker: Any = sys.modules.get("ray._private.worker")
    addons: Any = sys.modules.get("ray.util.serialization_addons")
    here = getattr(worker, "global_worker", None)
    mode, apply = getattr(here, "mode", None), getattr(addons, "apply", None)
    if mode is None or mode != getattr(worker, "WORKER_MODE", None) or apply is None:
        return
    # A task of the user's that looks for one of our actors unpickles its class, too.
    if (own := getattr(here, "actor_id", None)) is None or own.is_nil():
        return
    # Classes that Ray makes to start an actor have this from the beginning, and their process may be a user's worker.
    if hasattr(actor, "__ray_actor_class__") or sys.modules.keys() & _SERIALIZERS:
        return

    def apply_others(context: Any) -> None:
        addons.apply = apply
        stand_in: Any = ModuleType("stand_in")
        stand_in.__getattr__ = lambda name: _do_nothing  # pyright: ignore[reportUnknownLambdaType]
        for module in _SERIALIZERS:
            sys.modules.setdefault(module, stand_in)
        try:
            apply(context)
        finally:
            for module in _SERIALIZERS:
                if sys.modules.get(module) is stand_in:
                    del sys.modules[module]

    addons.apply = apply_others


def _do_nothing(*_: Any) -> None:
    """Stands in for whatever Ray calls of a module."""


def start_actor(
    kind: type,
    *arguments: Any,
    name: str,
    space: str,
    needs: Needs,
    strategy: Any = "DEFAULT",
    threads: int,
    restarts: int = 0,
    groups: Mapping[str, int] | None = None,
    is_detached: bool = False,
) -> Actor:
    """Start an actor. If its process dies, Ray starts it again up to `restarts` times.

    Calls `in_group` have threads of their own, as many as `groups` says. A detached actor outlives this process.
    Raises `ValueError` if the name is taken. Ray never repeats a call, because that would break the protocol.
    """
    options = dict[str, Any](
        num_cpus=needs.num_cpus,
        num_gpus=needs.num_gpus,
        resources=dict(needs.resources),
        max_restarts=restarts,
        max_task_retries=0,
        max_concurrency=threads,
        name=name,
        namespace=space,
        scheduling_strategy=strategy,
    )
    if is_detached:
        options["lifetime"] = "detached"
    return _remote_class(kind, frozenset((groups or {}).items())).options(**options).remote(*arguments)


@cache
def _remote_class(kind: type, groups: frozenset[tuple[str, int]]) -> Any:
    """What Ray makes of a class. Only once, because Ray never lets go of one."""
    return ray.remote(concurrency_groups=dict(groups))(kind) if groups else ray.remote(kind)


def in_group(method: Any, group: str) -> Any:
    """An actor's method, to be called in a group of threads."""
    return method.options(concurrency_group=group)


def find_actor(name: str, space: str) -> Actor | None:
    try:
        return ray.get_actor(name, namespace=space)
    except ValueError:
        return None


def actor_names(space: str) -> list[str]:
    return sorted(name for name, namespace in named_actors() if namespace == space)


def end_own_actor() -> None:
    """End the process of the actor that calls this, for good: Ray does not start it again."""
    ray.kill(ray.get_runtime_context().current_actor)


def own_actor() -> Actor | None:
    """A handle of the actor that calls this; None in a process that is no actor."""
    context = ray.get_runtime_context()
    return context.current_actor if context.get_actor_id() else None


def replace(actor: Actor) -> None:
    """End an actor's process and have Ray start the actor again. A process that does not react is killed after 5 s."""
    ray.kill(actor, no_restart=False)


def named_actors() -> list[tuple[str, str]]:
    """The name and the namespace of every actor on the cluster that has a name."""
    return [(actor["name"], actor["namespace"]) for actor in ray.util.list_named_actors(all_namespaces=True)]


def get(pending: Pending, timeout_s: float | None = None) -> Any:
    return ray.get(pending, timeout=timeout_s)


def put(data: bytes | bytearray | memoryview) -> Pending:
    """Put bytes into the object store. `get` gives an array of them, which is mapped from the host's one copy."""
    return ray.put(np.frombuffer(data, np.uint8))


def cancel(pending: Pending) -> None:
    """Cancel a call of an async method."""
    ray.cancel(pending)


def future(pending: Pending) -> Future[Any]:
    """A future for an answer; its callbacks run in a thread of Ray."""
    return pending.future()


def is_over(pending: Pending, timeout_s: float) -> bool:
    """Whether an answer arrives within that time."""
    return not unanswered([pending], timeout_s)


def succeeded(over: Pending) -> bool:
    """Whether a call that is over has succeeded: the actor was alive."""
    try:
        ray.get(over)
    except ray.exceptions.RayError:
        return False
    return True


def unanswered(pending: Sequence[Pending], timeout_s: float) -> list[Pending]:
    """Those of several calls that get no answer within that time."""
    return list(ray.wait(pending, num_returns=len(pending), timeout=timeout_s)[1])


def metric(
    name: str, meaning: str, tags: tuple[str, ...], is_counter: bool
) -> Callable[[float, Mapping[str, str]], None]:
    """A metric that Ray's agents serve to Prometheus, as `ray_NAME`. The result adds to a counter or sets a gauge."""
    from ray.util import metrics

    made = (metrics.Counter if is_counter else metrics.Gauge)(name, meaning, tags)
    return cast(Any, made).inc if is_counter else cast(Any, made).set


def kill(actor: Actor) -> None:
    """End an actor's process, whatever it is doing."""
    ray.kill(actor)


def first_line(error: BaseException) -> str:
    """Ray's message, without its advice. Of an actor that failed to begin, the error that it raised."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    return lines[-1 if getattr(error, "actor_init_failed", False) else 0]
