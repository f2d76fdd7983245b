"""Print the options of the SGLang (or vLLM) that this Python has, as one JSON object: its own argparse, asked.

    python3 dump.py sglang          on a host, sent over standard input
    python3 dump.py vllm --stubs    beside the unpacked sources of a wheel: everything that is not there is a stand-in

Standard library alone and Python 3.8, since it runs where the engine is. The engine's parser is built by the engine's
own code and then read; no option's help text is kept. The shape is that of `tools/serving/flags/table.py`.
"""

import argparse
import enum
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import types

ABSENT = ("npu", "xpu", "hpu", "mps", "musa", "mlu")
OTHER_HARDWARE = ("libtpu", "tpu_info", "habana_frameworks", "transformers_neuronx", "neuronxcc", "amdsmi", "torch_xla")
MARK = "TURNOUT-FLAGS "


class Meta(type):
    """Classes that answer every attribute, so that annotations, decorators and module constants go through."""

    def __getattr__(cls, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return stand_in(name)

    def __call__(cls, *args, **kwargs):
        if "_stand_in" not in cls.__dict__:
            return super().__call__()
        if len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type)):
            return args[0]
        return stand_in(cls.__name__)

    def _same(cls, *others):
        return cls

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __mod__ = __getitem__ = _same

    def __or__(cls, other):
        return object

    __ror__ = __or__

    def __setitem__(cls, key, value):
        pass

    def __iter__(cls):
        return iter(())

    def _no(cls, *others):
        return 0

    __len__ = __int__ = __index__ = __lt__ = __gt__ = __le__ = __ge__ = __contains__ = _no

    def __bool__(cls):
        return False

    def __float__(cls):
        return 0.0


def any_schema(cls, source, handler):
    """What pydantic is told of a stand-in: anything goes."""
    from pydantic_core import core_schema

    return core_schema.any_schema()


def stand_in(name):
    """A class that may be called, subclassed, subscripted, counted with and used as a decorator."""
    inner = {
        "_stand_in": True,
        "__init_subclass__": classmethod(lambda cls, **kwargs: None),
        "__get_pydantic_core_schema__": classmethod(any_schema),
    }
    return Meta(name, (), inner)


class Module(types.ModuleType):
    """A module that has whatever is asked of it, but no accelerators."""

    def __getattr__(self, name):
        if (name.startswith("__") and name.endswith("__")) or name in ABSENT:
            raise AttributeError(name)
        value = stand_in(name)
        setattr(self, name, value)
        return value


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands behind the installed packages for modules that the engine wants and that are not there.

    Those are compiled, generated or not installed. What other packages try to import is theirs to miss.
    """

    def __init__(self, engine, without=()):
        self.engine, self.without = engine, without

    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in OTHER_HARDWARE:
            return None
        if name.partition(".")[0] in self.without:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        frame = sys._getframe(1)
        while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if not self.engine:
            return None
        asks = frame.f_globals.get("__name__", "").partition(".")[0]
        if asks not in (self.engine, "__main__") or name.partition(".")[0] in sys.stdlib_module_names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = Module(spec.name)
        module.__path__ = []
        module.__version__ = "9999.0"
        return module

    def exec_module(self, module):
        pass


def forgive_operators():
    """Let an engine's own operators go unregistered where torch refuses the stand-ins in them."""
    import torch.library

    def forgiving(real):
        def call(*args, **kwargs):
            try:
                return real(*args, **kwargs)
            except (TypeError, RuntimeError):
                return None

        return call

    for name in ("define", "impl", "_register_fake"):
        setattr(torch.library.Library, name, forgiving(getattr(torch.library.Library, name)))


def pretend_cuda():
    """Tell vLLM that there are GPUs of NVIDIA: without any it does not even describe its options."""
    platforms = importlib.import_module("vllm.platforms")
    platforms.current_platform.device_type = "cuda"


def sglang_parser():
    """SGLang's parser, as `sglang.launch_server` builds it."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser


def vllm_parser():
    """vLLM's parser, as `vllm serve` builds it."""
    for name in ("vllm.entrypoints.openai.cli_args", "vllm.entrypoints.common.cli_args"):
        try:
            module = importlib.import_module(name)
            make = module.make_arg_parser
        except (ImportError, AttributeError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        if isinstance(module, Module):
            continue
        for place in ("vllm.utils.argparse_utils", "vllm.utils"):
            try:
                kind = importlib.import_module(place).FlexibleArgumentParser
                if isinstance(kind, type) and issubclass(kind, argparse.ArgumentParser):
                    return make(kind())
            except (ImportError, AttributeError) as error:
                print(f"{place}: {error}", file=sys.stderr)
    raise ImportError("no make_arg_parser in this vLLM")


def plain(value):
    """A default or a choice as JSON has it."""
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value), key=str)
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return None


def type_name(kind):
    """The name of a converter; vLLM's `optional_type(int)` is `optional int`."""
    name = getattr(kind, "__qualname__", type(kind).__name__)
    if "<locals>" not in name:
        return name
    inner = [cell.cell_contents for cell in getattr(kind, "__closure__", None) or ()]
    names = [getattr(value, "__name__", "") for value in inner if callable(value)]
    return " ".join(["optional" if "optional" in name else name.rpartition(".")[2], *names])


def option(action):
    """One option: only what differs from an option that stores one string is said."""
    kind = type(action).__name__.strip("_")
    said = {"flags": list(action.option_strings), "dest": action.dest, "action": kind}
    if action.type is not None:
        said["type"] = type_name(action.type)
    if action.nargs is not None:
        said["nargs"] = action.nargs
    if action.choices is not None:
        said["choices"] = plain(list(action.choices))
    if action.const is not None or getattr(action, "const_value", None) is not None:
        said["const"] = plain(action.const if action.const is not None else action.const_value)
    if action.default is not None and action.default != argparse.SUPPRESS:
        said["default"] = plain(action.default)
    if action.required and action.option_strings:
        said["required"] = True
    if getattr(action, "new_flag", None):
        said["instead"] = action.new_flag
    if getattr(action, "deprecated", False):
        said["deprecated"] = True
    return said


def version_of(engine):
    """The installed version: of the distribution, else what the module says."""
    from importlib import metadata

    try:
        return metadata.version(engine)
    except metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(engine), "__version__", "unknown"))


def main():
    """Print the table behind a mark, because engines print while they are imported."""
    engine = sys.argv[1] if len(sys.argv) > 1 else "sglang"
    if "--stubs" in sys.argv:
        without = sys.argv[sys.argv.index("--stubs") + 1 :]
        os.environ.setdefault("VLLM_TARGET_DEVICE", "empty")
        sys.meta_path.insert(0, Stubs("", without))
        sys.meta_path.append(Stubs(engine))
        if engine == "vllm":
            forgive_operators()
            pretend_cuda()
    parser = {"sglang": sglang_parser, "vllm": vllm_parser}[engine]()
    options = [option(action) for action in parser._actions if action.dest != "help"]
    print(MARK + json.dumps({"engine": engine, "version": version_of(engine), "options": options}))


if __name__ == "__main__":
    main()
