"""Whether the hosts that a playbook names are there to be reached: told before anything is stored or waited for.

    check_hosts(plan, known)           # raises `NotFound` for a name that leads nowhere

A host that the operator added, or the playbook brings along, is taken as it is: it may be down, and is waited for. Any
other name is OpenSSH's to find, and must lead to an address, unless `~/.ssh/config` sends it through another host.
"""

from __future__ import annotations

import socket
from collections.abc import Collection

import asyncssh
from sqlalchemy import Connection, select

from agent.hosts import spec_of
from agent.playbook_errors import did_you_mean, listed
from agent.templates import render
from state.errors import NotFound, TurnoutError
from state.models import Host, table
from state.specs import Plan
from tools.hostkeys import Endpoint


def added(conn: Connection) -> set[str]:
    """The names of the hosts that the operator added."""
    return set(conn.execute(select(table(Host).c.name)).scalars())


def check_hosts(plan: Plan, known: Collection[str]) -> None:
    """Raises `NotFound` if the plan names a host that is neither `known` nor found by its name. Blocks."""
    for name, why in unknown_hosts(plan, known).items():
        raise no_such_host(name, why, known)


def no_such_host(name: str, why: str, known: Collection[str]) -> NotFound:
    """The error for a host that is neither `known` nor found by its name."""
    some = {"local", *known}
    return NotFound(
        f"there is no host `{name}`: none was added by that name, and it leads to no address: `{why}`",
        hint=f"known are {listed(sorted(some))}{did_you_mean(name, some) or ';'}"
        f" `turnout hosts add {name} [USER@]ADDRESS` adds one",
    )


def unknown_hosts(plan: Plan, known: Collection[str]) -> dict[str, str]:
    """The hosts of a plan that lead nowhere, each with what the resolver says."""
    asked = named(plan) - {"local", *known, *plan.hosts}
    return {name: why for name in sorted(asked) if (why := unresolved(name))}


def named(plan: Plan) -> set[str]:
    """The hosts that a plan is known to use; not those that a result will name."""
    texts = [plan.params.get("host"), *(spec.body.get("host") for spec in plan.todos)]
    return {name for text in texts if isinstance(text, str) and (name := _rendered(text, plan))}


def _rendered(text: str, plan: Plan) -> str:
    try:
        return render(text, {**plan.params, "params": plan.params, "todos": {}})
    except TurnoutError:
        return ""


def unresolved(name: str) -> str:
    """Blocks. Why a destination has no address; nothing if it has one, or only a host on the way could tell."""
    endpoint = Endpoint.of(spec_of(name, None))
    try:
        options = asyncssh.SSHClientConnectionOptions(host=endpoint.address, username=endpoint.user or (), config=())
        if not (options.tunnel or options.proxy_command):
            socket.getaddrinfo(options.host, None)
    except socket.gaierror as error:
        return str(error.strerror)
    except UnicodeError:
        return "it is no name of a machine"
    except (asyncssh.Error, OSError, ValueError):
        return ""  # a configuration that cannot be read: connecting says what is wrong with it
    return ""
