"""What vendors of networks and clouds set for NCCL: forced on purpose, and not to be undone."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class Recipe:
    """The settings of one network."""

    name: str
    networks: tuple[str, ...]
    """How the names begin by which NCCL calls it (`NCCL_NET`, «Using network …»), in lower case."""
    sets: frozenset[str]
    """Of its variables those that choose for NCCL, which elsewhere is left to it."""
    source: str
    prefixes: tuple[str, ...] = ()
    """How the names of variables begin that it alone has."""
    marks: tuple[tuple[str, str], ...] = ()
    """(variable, a part of its value) that show it too."""


RECIPES = (
    Recipe(
        "Google GPUDirect-TCPX",
        ("gpudirecttcpx",),
        frozenset({"NCCL_ALGO", "NCCL_PROTO", "NCCL_NET", "NCCL_NET_GDR_LEVEL", "NCCL_CROSS_NIC", "NCCL_IB_DISABLE"}),
        "cloud.google.com/kubernetes-engine/docs/how-to/gpu-bandwidth-gpudirect-tcpx",
        prefixes=("NCCL_GPUDIRECTTCPX_",),
    ),
    Recipe(
        "Google GPUDirect-TCPXO",
        ("fastrak",),
        frozenset(
            {
                "NCCL_ALGO",
                "NCCL_PROTO",
                "NCCL_NET",
                "NCCL_NET_GDR_LEVEL",
                "NCCL_CROSS_NIC",
                "NCCL_IB_DISABLE",
                "NCCL_NVLS_ENABLE",
            }
        ),
        "AI-Hypercomputer/gpu-recipes src/helm-charts/a3mega; nccl-env-profile.sh of the plugin",
        prefixes=("NCCL_FASTRAK_",),
    ),
    Recipe(
        "Google gIB",
        ("gib",),
        frozenset({"NCCL_NET", "NCCL_NET_GDR_LEVEL", "NCCL_CROSS_NIC"}),
        "set_nccl_env.sh of the plugin (/usr/local/gib/scripts)",
        marks=(("NCCL_TUNER_CONFIG_PATH", "/gib/"),),
    ),
    Recipe(
        "HPE Slingshot by aws-ofi-nccl",
        (),
        frozenset({"NCCL_PROTO", "NCCL_NET", "NCCL_NET_GDR_LEVEL", "NCCL_CROSS_NIC", "NCCL_IB_DISABLE"}),
        "docs.cscs.ch/software/communication/nccl; argonne-lcf/user-guides, NCCL on Polaris",
        marks=(("NCCL_SOCKET_IFNAME", "hsn"),),
    ),
    Recipe(
        "AWS EFA by aws-ofi-nccl",
        ("aws", "ofi", "libfabric"),
        frozenset({"NCCL_PROTO", "NCCL_NET", "NCCL_IB_DISABLE", "NCCL_NVLS_ENABLE"}),
        "aws/aws-ofi-nccl README and src/platform-aws.c",
        marks=(("NCCL_NET_PLUGIN", "ofi"),),
    ),
    Recipe(
        "Azure ND",
        (),
        frozenset({"NCCL_NET_GDR_LEVEL", "NCCL_PXN_DISABLE"}),
        "Azure/azhpc-images topology/ and /etc/nccl.conf of its images",
        marks=(("NCCL_TOPO_FILE", "ndv"), ("NCCL_TOPO_FILE", "/opt/microsoft/")),
    ),
)


def kept_by_vendors(variables: Mapping[str, str], networks: Collection[str]) -> dict[str, Recipe]:
    """Of the variables those that a recognised recipe sets, with that recipe."""
    named = [name.lower() for name in (variables.get("NCCL_NET", ""), *networks)]
    if "socket" in named:  # the job does without the vendor's network
        return {}
    return {
        name: recipe
        for recipe in RECIPES
        if _is_used(recipe, variables, named)
        for name in variables
        if name in recipe.sets
    }


def _is_used(recipe: Recipe, variables: Mapping[str, str], named: Collection[str]) -> bool:
    return (
        any(name.startswith(recipe.networks) for name in named)
        or any(name.startswith(recipe.prefixes) for name in variables)
        or any(part in variables.get(name, "").lower() for name, part in recipe.marks)
    )
