"""Stand-ins for what an engine imports and this machine does not have, so that a wheel's own code can be asked.

Used by `dump.py --stubs` beside the unpacked sources of a wheel; never on a host. Modules that are compiled, generated
or not installed become modules of classes that answer everything, so that annotations, decorators and constants of
module level go through. What an engine's parser is made of is real code.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

ABSENT = ("npu", "xpu", "hpu", "mps", "musa", "mlu")
OTHER_HARDWARE = ("libtpu", "tpu_info", "habana_frameworks", "transformers_neuronx", "neuronxcc", "amdsmi", "torch_xla")


class Meta(type):
    """Classes that answer every attribute, call, subscript and number that is asked of them."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return stand_in(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "_stand_in" not in cls.__dict__:
            return super().__call__()
        if len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType | type):
            return args[0]
        return stand_in(cls.__name__)

    def _same(cls, *others: Any) -> Any:
        return cls

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __mod__ = __getitem__ = _same

    def __or__(cls, other: Any) -> Any:
        return object

    __ror__ = __or__

    def __setitem__(cls, key: Any, value: Any) -> None:
        pass

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def _no(cls, *others: Any) -> int:
        return 0

    __len__ = __int__ = __index__ = __lt__ = __gt__ = __le__ = __ge__ = __contains__ = _no

    def __bool__(cls) -> bool:
        return False

    def __float__(cls) -> float:
        return 0.0


def _any_schema(cls: Any, source: Any, handler: Any) -> Any:
    """What pydantic is told of a stand-in: anything goes."""
    from pydantic_core import core_schema

    return core_schema.any_schema()


def stand_in(name: str) -> Any:
    """A class that may be called, subclassed, subscripted, counted with and used as a decorator."""
    inner = {
        "_stand_in": True,
        "__init_subclass__": classmethod(lambda cls, **kwargs: None),
        "__get_pydantic_core_schema__": classmethod(_any_schema),
    }
    return Meta(name, (), inner)


class Module(types.ModuleType):
    """A module that has whatever is asked of it, but no accelerators."""

    def __getattr__(self, name: str) -> Any:
        if (name.startswith("__") and name.endswith("__")) or name in ABSENT:
            raise AttributeError(name)
        value = stand_in(name)
        setattr(self, name, value)
        return value


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands behind the installed packages for modules that the engine wants and that are not there.

    What other packages try to import is theirs to miss. `without` names packages to replace although they are there;
    such a finder stands before all others and has no engine.
    """

    def __init__(self, engine: str, without: Sequence[str] = ()) -> None:
        self.engine, self.without = engine, without

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """A spec for what is missing."""
        first = name.partition(".")[0]
        if first in OTHER_HARDWARE or first in sys.stdlib_module_names:
            return None
        if first in self.without or (self.engine and _asks() in (self.engine, "__main__")):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """A module of stand-ins."""
        module = Module(spec.name)
        module.__path__ = []
        module.__dict__["__version__"] = "9999.0"
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def _asks() -> str:
    """The package whose code imports."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_back is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] if frame else ""


def install(engine: str, without: Sequence[str]) -> None:
    """Put the stand-ins in place for an engine, before it is imported."""
    sys.meta_path.insert(0, Stubs("", without))
    sys.meta_path.append(Stubs(engine))
    if engine == "vllm":
        _forgive_operators()
        _pretend_cuda()


def _forgive_operators() -> None:
    """Let an engine's own operators go unregistered where torch refuses the stand-ins in them."""
    import torch.library

    def forgiving(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return real(*args, **kwargs)
            except (TypeError, RuntimeError):
                return None

        return call

    for name in ("define", "impl", "_register_fake"):
        setattr(torch.library.Library, name, forgiving(getattr(torch.library.Library, name)))


def _pretend_cuda() -> None:
    """Tell vLLM that there are GPUs of NVIDIA: without any it does not even describe its options."""
    platforms = importlib.import_module("vllm.platforms")
    platforms.current_platform.device_type = "cuda"
