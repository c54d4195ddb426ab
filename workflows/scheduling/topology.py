"""Which of an agent's slots are close to each other, and which of the free ones to take so that a trial's are.

Three kinds of groups, the fastest way first: GPUs that NVLink joins, those below one PCIe bridge,
those of one NUMA node.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pydantic import BaseModel, ConfigDict

_Groups = tuple[tuple[int, ...], ...]


class Topology(BaseModel):
    """Groups of slots of one agent; those of a kind are disjoint. A slot in none has none that close.

    An agent that says nothing of it, as one of cores or a cluster, has no groups: there, all slots are alike.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    nvlink: _Groups = ()
    pcie: _Groups = ()
    numa: _Groups = ()

    @property
    def levels(self) -> tuple[tuple[str, _Groups], ...]:
        """The kinds that say something of these slots, in words, the closest first."""
        kinds = (("NVLink", self.nvlink), ("one PCIe bridge", self.pcie), ("one NUMA node", self.numa))
        return tuple((name, groups) for name, groups in kinds if groups)

    def chosen(self, free: Sequence[int], count: int) -> tuple[int, ...]:
        """The slots to take of those that are free, of which there are at least `count`.

        They are of the closest group that has room. Of several such, of the one with the least room, so that large ones
        stay whole for those who need them.
        """
        left = list(free)
        for _, groups in self.levels:
            fitting = [group for group in _parted(groups, left) if len(group) >= count]
            left = min(fitting, key=lambda group: (len(group), group), default=left)
        return tuple(left[:count])

    def is_closest(self, free: Collection[int], serving: Collection[int], count: int) -> bool:
        """Whether `count` of the free slots are as close as `count` of those in service can ever be."""
        return self._level(free, count) == self._level(serving, count)

    def joined_by(self, slots: Collection[int]) -> str:
        """What joins these slots, in words; empty: nothing that is known."""
        if len(slots) < 2:
            return ""
        return next((name for name, groups in self.levels if any(set(slots) <= set(group) for group in groups)), "")

    def of(self, slot: int) -> str:
        """The groups of a slot, by their numbers: `NVLink 0, NUMA 1`."""
        short = {"NVLink": "NVLink", "one PCIe bridge": "PCIe", "one NUMA node": "NUMA"}
        found = (
            f"{short[name]} {number}"
            for name, groups in self.levels
            for number, group in enumerate(groups)
            if slot in group
        )
        return ", ".join(found)

    def _level(self, slots: Collection[int], count: int) -> int:
        for number, (_, groups) in enumerate(self.levels):
            if any(len(group) >= count for group in _parted(groups, slots)):
                return number
        return len(self.levels)


def _parted(groups: _Groups, slots: Collection[int]) -> list[list[int]]:
    """The slots by their groups; one that is in none is a group of its own."""
    grouped = {slot for group in groups for slot in group}
    parts = [sorted(set(group) & set(slots)) for group in groups]
    return [*(part for part in parts if part), *([slot] for slot in sorted(slots) if slot not in grouped)]
