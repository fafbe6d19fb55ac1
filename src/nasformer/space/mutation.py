"""How strongly evolution mutates an architecture: three chances and the unit that they apply to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from nasformer.errors import UserError
from nasformer.space.roles import Role, check_role


@dataclass(frozen=True)
class Mutation:
    """Chances to redraw the parts of an architecture.

    A redraw draws from all the choices, so it may give the same value again, as AutoFormer's code does.

    Args:
        depth: Chance to redraw the depth of each Repeat. Deeper appends freshly sampled items, shallower
            truncates.
        width: Chance to redraw each Choice, or each pick of a OneOf, that lies outside any Repeat. A redrawn
            pick brings freshly sampled contents.
        block: The same inside a Repeat.
        unit: What `block` applies to: with "gene" each Choice (or pick) of each item on its own, with "block"
            each item as a whole.
        role: Redraws only the genes of this role; all others stay as they are. A redrawn pick then brings along the
            fields of the old option that the new one has by the same name, as far as it allows their values, and
            draws the rest. A deeper Repeat copies its last item and redraws the genes of the role in the copies, so
            that no gene of the other role is invented (only a Repeat that was empty has nothing to copy, and samples).
    """

    depth: float
    width: float
    block: float
    unit: Literal["gene", "block"] = "gene"
    role: Role | None = None

    def __post_init__(self) -> None:
        for name in ("depth", "width", "block"):
            chance = getattr(self, name)
            if not 0 <= chance <= 1:
                raise UserError(f"mutation {name} is {chance}, expected a chance between 0 and 1")
        if self.unit not in ("gene", "block"):
            raise UserError(f"mutation unit is {self.unit!r}, allowed: 'gene', 'block'")
        if self.role is not None:
            check_role("mutation", self.role)

    def moves(self, role: Role) -> bool:
        """Whether it redraws genes of this role at all."""
        return self.role is None or self.role == role

    def inside_repeat(self) -> Mutation:
        """This mutation as the items of a Repeat see it: their choices are redrawn with chance `block`."""
        return replace(self, width=self.block)

    def certain(self) -> Mutation:
        """This mutation with every chance at 1."""
        return replace(self, depth=1.0, width=1.0, block=1.0)


# AutoFormer gives two sets of numbers. Its published code redraws each gene of a layer with chance 0.2, depth
# and embedding with 0.4; its paper has the two swapped: depth 0.2, each block 0.4.
MUTATIONS = {"code": Mutation(0.4, 0.4, 0.2, "gene"), "paper": Mutation(0.2, 0.2, 0.4, "block")}
