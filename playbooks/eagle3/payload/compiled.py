"""`torch.compile` for the few functions where fusing pays, behind one switch that is off until a step turns it on.

On a GPU the norms, the rotation, the gated MLP and above all the softmax of the loss are bound by memory traffic, and a
compiled function passes over its tensors once. On a CPU compiling costs more than the short runs there have.

They are compiled for fixed shapes: every function here works on positions laid end to end, and while the switch is on
each batch has the same number of them (see feed), so that one compilation serves a whole training. With lengths left
open a run of five minutes spent two of them compiling anew for shapes that differed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])
_on = False


def use_compiled(on: bool) -> None:
    """Turn the switch."""
    global _on
    _on = on
    if on:  # merging has a variant for each unrolled step
        torch._dynamo.config.recompile_limit = 64


def is_compiled() -> bool:
    """Whether the switch is on."""
    return _on


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """For work of other shapes: the switch is off within."""
    global _on
    before, _on = _on, False
    try:
        yield
    finally:
        _on = before


def compiled(function: Function) -> Function:
    """Decorator: `function`, or its compiled form while the switch is on."""

    @functools.cache
    def fast() -> Callable[..., Any]:  # late: the compiler alone takes seconds to import
        return torch.compile(function, dynamic=False)

    @functools.wraps(function)
    def choose(*args: Any) -> Any:
        return (fast() if _on else function)(*args)

    return choose  # type: ignore[return-value]
