"""Variants of the eight families by name, and the shapes of the study's ablations (growth study, Appendix B)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from looplit.errors import InputError, require
from looplit.model.config import HEAD_DIM, BackboneConfig, split_depth
from looplit.recipes.families import FAMILIES, Family
from looplit.recipes.study import imported_family

WIDTH_ONLY_DEPTH = 11  # executed blocks of the width-only ladders


# Stem of a variant's name: the family whose cores and class it has, and the one whose boundary and recipe.
_STEMS = {
    "loop": ("loop_2", "loop_2"),
    "untied": ("untied_2", "untied_2"),
    "tied_vanilla": ("loop_2", "vanilla"),
    "untied_vanilla": ("untied_2", "vanilla"),
}
VARIANTS = "loop_K, untied_K, tied_vanilla_K, untied_vanilla_K with K of 2 or more"


def family_named(name: str) -> Family:
    """The family or variant called `name`.

    Beside the eight families: `loop_K` and `untied_K` at any K of 2 or more (hyperparameters of the K = 2 row), the
    plain controls `tied_vanilla_K` and `untied_vanilla_K` (identity boundary, Vanilla's recipe), and that of a module
    class of your own by its import path.

    >>> family_named("loop_3").passes, family_named("untied_vanilla_4").boundary
    (3, 'identity')
    """
    if name in FAMILIES:
        return FAMILIES[name]
    if "." in name:
        family = imported_family(name, "family")[1]
        require(isinstance(family, Family), "family", name, "is not of the growth study")
        return family
    stem, _, passes = name.rpartition("_")
    if stem not in _STEMS or not re.fullmatch(r"[1-9]\d*", passes) or passes == "1":
        raise InputError(f"family = {name!r}: must be one of {', '.join(FAMILIES)}, or {VARIANTS}")
    cores, tuned = (FAMILIES[base] for base in _STEMS[stem])
    return replace(tuned, name=name, tied=cores.tied, passes=int(passes), class_path=cores.class_path)


def as_variant(family: Family, backbone: BackboneConfig) -> Family:
    """`family` under the name of the variant that it is with the K and the boundaries of `backbone`."""
    plain = {backbone.boundary, backbone.coda_boundary} == {"identity"}
    for stem, (cores, tuned) in _STEMS.items():
        if family.name == cores and plain == (tuned == "vanilla"):
            return replace(family, name=f"{stem}_{backbone.passes}")
    return family


def width_only(family: Family, depth: int) -> dict[str, Any]:
    """Width and heads of d`depth`, blocks of the thirds split that executes 11 at the family's K (Figure 16e).

    >>> width_only(FAMILIES["untied_2"], 12)
    {'prelude': 2, 'core': 3, 'coda': 3}
    """
    for nominal in range(3, WIDTH_ONLY_DEPTH + 1):
        prelude, core, coda = split_depth(nominal)
        if prelude + family.passes * core + coda == WIDTH_ONLY_DEPTH:
            return {"prelude": prelude, "core": core, "coda": coda}
    raise InputError(f"shape = 'width_only': no split in thirds executes {WIDTH_ONLY_DEPTH} blocks in {family.name}")


def deep_narrow(depth: int) -> dict[str, Any]:
    """Width 64 per block, the study's 1:64 ("Deeper") ladders (Figure 16c); heads of 128, or of 64 at odd depth.

    >>> deep_narrow(12)
    {'width': 768, 'heads': 6}
    """
    width = HEAD_DIM // 2 * depth
    return {"width": width, "heads": width // HEAD_DIM if width % HEAD_DIM == 0 else depth}


def fixed_allocation(depth: int, prelude: int, coda: int) -> dict[str, Any]:
    """Prelude and coda of fixed size, the core takes the rest: 2/C/3 and 1/C/2 (Figure 15a).

    >>> fixed_allocation(12, 2, 3)
    {'prelude': 2, 'core': 7, 'coda': 3}
    """
    require(depth > prelude + coda, "depth", depth, f"must be above the {prelude} + {coda} blocks of prelude and coda")
    return {"prelude": prelude, "core": depth - prelude - coda, "coda": coda}


def shape(name: str, family: Family, depth: int) -> dict[str, Any]:
    """Backbone fields of a shape by name: thirds, width_only, deep_narrow, or P/C/D with the letter C, as 2/C/3."""
    if name == "thirds":
        return {}
    if name == "width_only":
        return width_only(family, depth)
    if name == "deep_narrow":
        return deep_narrow(depth)
    match = re.fullmatch(r"(\d+)/C/(\d+)", name)
    if match is None:
        raise InputError(f"shape = {name!r}: must be thirds, width_only, deep_narrow, or like 2/C/3")
    return fixed_allocation(depth, int(match[1]), int(match[2]))
