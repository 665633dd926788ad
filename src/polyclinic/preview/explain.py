"""What a method does and what leaves a site, computed for a real network before any run starts."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from polyclinic.components.base import Component
from polyclinic.core.wording import readable_bytes
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import tensor_bytes
from polyclinic.recipe import Recipe
from polyclinic.recipe.fingerprint import recipe_sha256
from polyclinic.runs.plan import plan_run


def explanation(recipe: Recipe, plugins: bool = False) -> dict[str, Any]:
    """Plain data about the recipe's method on the recipe's network and federation.

    ``plugins`` allows those that the recipe names to run.
    """
    plan = plan_run(recipe, plugins)
    sha256 = recipe_sha256(recipe)  # of the recipe as it travels: a site resolves the rest itself
    recipe, workspace = plan.recipe, plan.open_workspace()
    pooled = workspace.method.pooled
    # The reference that pools all data sends images, once, and nothing else.
    weights = {} if pooled else workspace.exchanged_weights()
    shared = [
        {"component": name, "tensor": tensor.name, "shape": list(tensor.shape), "dtype": _plain_dtype(tensor.dtype),
         "bytes": _declared_bytes(tensor), "bytes_at_most": _declared_bytes(tensor, tensor.at_most),
         "prototypes": _declared_prototypes(tensor), "pictures_of": tensor.pictures_of, "what": tensor.what}
        for name, declared in ({} if pooled else workspace.declared()).items()
        for tensor in declared
    ]  # fmt: skip
    return {
        "method": workspace.method.name,
        "summary": workspace.method.summary,
        "paper": f"{workspace.method.paper} {workspace.method.year or ''}".strip(),
        "recipe_sha256": sha256,
        "federation": plan.federation.name,
        "network": recipe.network.name,
        "images_leave": pooled,
        "labels": _labels_read(recipe, workspace.method.all_labels),
        "stays": _stays(recipe),
        "components": [_component(component) for component in workspace.components],
        "weights": [
            {"tensor": n, "shape": list(t.shape), "dtype": _plain_dtype(t.dtype), "bytes": tensor_bytes({n: t})}
            for n, t in weights.items()
        ],
        "weights_bytes": tensor_bytes(weights),
        "shared": shared,
        "shared_bytes": sum(row["bytes"] or 0 for row in shared),
        "prototypes": [row["prototypes"] for row in shared if row["prototypes"] is not None],
        "comes_back": {} if pooled else {c.name: c.comes_back for c in workspace.components if c.comes_back},
        "statistics": sorted(n for n in weights if any(c.sets(n) for c in workspace.components)),
        "kept": sorted(workspace.kept),
        "kept_bytes": tensor_bytes(workspace.kept_weights()),
        "warnings": workspace.warnings(),
        "plain_data": "site name, round, number of training samples and steps, mean of each loss term, seconds; "
        "after validation the mean Dice and whether any foreground was predicted; after the test every metric of every "
        "case (over a network only if the site's policy says so, else mean, deviation and count); over a network also, "
        "once: the task, numbers of images by split, versions, and a keyed mark of the split",
    }  # fmt: skip


def _labels_read(recipe: Recipe, all_labels: bool) -> str:
    """Which labels of training images are read, in words."""
    budget = recipe.data.labelled
    if all_labels:
        return "all are read, those that data.labelled hides from other methods too"
    return "all are read" if budget is None else f"data.labelled = {budget} of each site; the others are never read"


def _stays(recipe: Recipe) -> str:
    """What a site computes of its images beside training and keeps to itself, in words; empty if nothing."""
    if recipe.data.intensity != "site":
        return ""
    what = "a mean and a deviation" + (" of each channel" if recipe.data.intensity_statistics == "channel" else "")
    voxels = "non-zero voxels" if recipe.data.nonzero else "all voxels"
    return (
        f"data.intensity = site: {what} over {voxels} of the site's training images (of all its images where it is "
        "only tested), which scale every image there and stay in its own run folder (intensity.json)"
    )


def _component(component: Component) -> dict[str, Any]:
    module = inspect.getmodule(type(component))
    return {
        "component": component.name,
        "level": component.level,
        "summary": (type(component).__doc__ or "").strip().splitlines()[0],
        "about": inspect.cleandoc(module.__doc__ or "") if module else "",
        "equations": list(component.used_equations()),
        "settings": component.settings.model_dump(),
        "defaults": type(component).Settings().model_dump(),
    }


def _plain_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _declared_bytes(tensor: Shared, at_most: int | None = None) -> int | None:
    """Bytes of a declared tensor, ``None`` where a size is only known at run time and ``at_most`` does not bound it."""
    count = tensor.dtype.itemsize
    for axis, size in enumerate(tensor.shape):
        known = at_most if isinstance(size, str) and axis == 0 else size
        if known is None or isinstance(known, str):
            return None
        count *= known
    return int(count)


def _declared_prototypes(tensor: Shared) -> int | str | None:
    """The largest number of prototypes in a declared tensor, or the name of a size that is only known at run time."""
    return (tensor.at_most or tensor.shape[0]) if tensor.prototypes else None


def print_explanation(facts: dict[str, Any]) -> None:
    """The explanation as a page."""
    console = Console(highlight=False)
    console.print(f"[bold]{escape(facts['method'])}[/bold]  {escape(facts['summary'])}")
    if facts["paper"]:
        console.print(facts["paper"], style="dim", markup=False)
    for component in facts["components"]:
        about = f"({component['level']}): {escape(component['summary'])}"
        console.print(f"\n[bold]{escape(component['component'])}[/bold] {about}")
        for equation in component["equations"]:
            console.print(f"  {equation}", markup=False)
        for name, value in component["settings"].items():
            default = component["defaults"][name]
            note = "" if value == default else f" (component's default: {default})"
            console.print(f"  {name} = {value}{note}", markup=False)
    console.print(f"\nLabels of training images: {facts['labels']}.", markup=False)
    if facts["stays"]:
        console.print(f"\nComputed at each site, and never sent: {facts['stays']}.", markup=False)
    where = f"{facts['network']} on {facts['federation']}"
    console.print(f"\n[bold]What leaves a site in every round[/bold] ({escape(where)})")
    if facts["images_leave"]:
        console.print("  EVERY IMAGE AND LABEL: this is a reference that pools all data, not a federated method.")
    _print_tensors(console, facts)
    console.print(f"\nRecipe sha256 {facts['recipe_sha256']}", soft_wrap=True)
    for warning in facts["warnings"]:
        console.print(f"warning: {warning}", style="yellow", markup=False)


def _print_tensors(console: Console, facts: dict[str, Any]) -> None:
    table = Table("what", "tensors", "size", show_edge=False)
    pictures = {row["component"]: row["pictures_of"] for row in facts["shared"] if row["pictures_of"] is not None}
    never = "any single image or label" if pictures else "every image and label"
    if not facts["images_leave"]:
        served = len(facts["statistics"])
        what = f"trained weights, and {served} buffers that the server sets" if served else "trained weights"
        table.add_row(what, str(len(facts["weights"])), readable_bytes(facts["weights_bytes"]))
        for row in facts["shared"]:
            shape = "x".join(map(str, row["shape"])) or "1 number"
            size = "known at run time" if row["bytes_at_most"] is None else readable_bytes(row["bytes_at_most"])
            size = f"at most {size}" if row["bytes"] is None and row["bytes_at_most"] is not None else size
            table.add_row(escape(f"{row['component']}: {row['tensor']} ({shape}), {row['what']}"), "1", size)
        console.print(table)
        if facts["prototypes"]:
            known = all(isinstance(count, int) for count in facts["prototypes"])
            number = f"at most {sum(facts['prototypes'])}" if known else "a number known at run time"
            console.print(f"  Prototypes uploaded in a round: {number}.")
        for component, cases in pictures.items():
            console.print(
                f"  PICTURES LEAVE: {component} sends means of {cases} images and of their labels, in which a patient "
                "may be seen, and every site gets them. Over a network a site's policy must name them: shared = "
                f'["*", "{component}/*"].', style="yellow", markup=False,
            )  # fmt: skip
        for component, text in facts["comes_back"].items():
            console.print(f"  Comes back to every site beside the weights, from {component}: {text}.", markup=False)
        console.print(f"  Plain numbers: {facts['plain_data']}.")
        console.print("  All names: polyclinic explain ... --json")
    if facts["kept"]:
        count, size = len(facts["kept"]), readable_bytes(facts["kept_bytes"])
        console.print(f"  Never leaves: {count} weights of the network ({size}), and {never}.")
    elif not facts["images_leave"]:
        console.print(f"  Never leaves: {never}.")
