"""NCCL (docs/userguide/source/env.rst), and CUDA's loading of modules. Unset is always a value of theirs."""

from __future__ import annotations

from gpuscope.analyzers.advice.settings.known import Known, table

_ENV = "docs/userguide/source/env.rst"

SETTINGS = {
    **table(
        "nccl", _ENV,
        ("NCCL_ALGO", None), ("NCCL_PROTO", None),  # NCCL's own choice
        ("NCCL_P2P_DISABLE", "0"), ("NCCL_P2P_LEVEL", None), ("NCCL_SHM_DISABLE", "0"), ("NCCL_IB_DISABLE", "0"),
        ("NCCL_NET", None), ("NCCL_NET_GDR_LEVEL", None), ("NCCL_NET_GDR_READ", None), ("NCCL_DMABUF_ENABLE", "1"),
        ("NCCL_IB_GDR_LEVEL", None), ("NCCL_LAUNCH_MODE", "PARALLEL"),
        Known("NCCL_NET_GDR_C2C", "1", _ENV, "nccl", (2, 26)), Known("NCCL_NVLS_ENABLE", "2", _ENV, "nccl", (2, 17)),
        Known("NCCL_CUMEM_ENABLE", None, _ENV, "nccl", (2, 18)), Known("NCCL_PAT_ENABLE", "2", _ENV, "nccl", (2, 23)),
        Known("NCCL_MIN_CTAS", None, _ENV, "nccl", (2, 17)), Known("NCCL_MAX_CTAS", None, _ENV, "nccl", (2, 17)),
        ("NCCL_MAX_NCHANNELS", None), ("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV"),
    ),
    **table("nccl", "ext-tuner/example/README.md",
            Known("NCCL_TUNER_CONFIG_FILE", None, "ext-tuner/example/README.md", "nccl", (2, 19))),
    **table("cuda", "CUDA C programming guide, lazy loading",
            Known("CUDA_MODULE_LOADING", "LAZY", "CUDA C programming guide, lazy loading", "cuda", (11, 7),
                  restores=True)),
}  # fmt: skip
