"""`torch.compile` for the few functions where fusing pays, behind one switch that is off until a step turns it on.

On a GPU the norms, the rotation, the gated MLP and above all the softmax of the loss are bound by memory traffic, and a
compiled function passes over its tensors once. On a CPU compiling costs more than the short runs there have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])
_on = False


def use_compiled(on: bool) -> None:
    """Turn the switch. Lengths and chain positions vary, so more variants of a function are allowed than usual."""
    global _on
    _on = on
    if on:
        torch._dynamo.config.recompile_limit = 64


def compiled(function: Function) -> Function:
    """Decorator: `function`, or its compiled form while the switch is on."""

    @functools.cache
    def fast() -> Callable[..., Any]:  # late: the compiler alone takes seconds to import
        return torch.compile(function)

    @functools.wraps(function)
    def choose(*args: Any) -> Any:
        return (fast() if _on else function)(*args)

    return choose  # type: ignore[return-value]
