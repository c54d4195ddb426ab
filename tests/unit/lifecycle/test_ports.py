"""Two allocations of one host never meet at the same port."""

from __future__ import annotations

import socket

from activities.launchers.specification import _is_free  # pyright: ignore[reportPrivateUsage]
from workflows.lifecycle.ports import NAMES, free_ports, ports_of


def test_ports_of_allocations_on_one_host_differ() -> None:
    """Slots are held by one allocation at a time; those without slots have ports beyond those of slots."""
    blocks = [ports_of("c", f"a{slot}", [slot, slot + 1]) for slot in range(0, 2048, 2)]
    blocks += [ports_of("c", f"b{number}", []) for number in range(3)]
    ports = [port for block in blocks for port in block.values()]
    assert len(set(ports)) == len(ports) == 4 * len(blocks)
    assert min(ports) >= 12400
    assert max(ports) < 29400, "no published harness' default, and no port of outgoing connections"
    assert ports_of("c", "x", []) == ports_of("c", "x", [])


def test_slots_beyond_the_range_come_round() -> None:
    assert ports_of("c", "x", [2048]) == ports_of("c", "x", [0])


def test_two_clusters_on_one_host_begin_elsewhere() -> None:
    """Their agents have slots of the same numbers, and both found the same ports free before either job listened."""
    seen = {cluster: frozenset(ports_of(cluster, "1.1", [0, 1]).values()) for cluster in ("here", "there")}
    assert not seen["here"] & seen["there"]
    without = {cluster: frozenset(ports_of(cluster, "1.1", []).values()) for cluster in ("here", "there")}
    assert not without["here"] & without["there"]


def test_others_are_taken_when_somebody_else_listens_on_one_of_them() -> None:
    wanted = ports_of("c", "x", [1999])
    with socket.socket() as taken:
        taken.bind(("", wanted["C10D_PORT"]))
        taken.listen()
        found = free_ports("x", wanted, _is_free)
    assert found.keys() == set(NAMES)
    assert not set(found.values()) & set(wanted.values())
    assert free_ports("x", wanted, _is_free) == wanted
    assert free_ports("x", wanted, lambda port: False) == wanted, "it is for the user's code to say so"
