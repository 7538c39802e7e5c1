"""NCCL (docs/userguide/source/env.rst), and CUDA's loading of modules. Unset is always a value of theirs."""

from __future__ import annotations

from gpuscope.analyzers.advice.settings.known import File

_ENV = File("nccl", "docs/userguide/source/env.rst", "env")
ALGO, PROTO = _ENV("NCCL_ALGO"), _ENV("NCCL_PROTO")  # NCCL's own choice
P2P_DISABLE, P2P_LEVEL = _ENV("NCCL_P2P_DISABLE", "0"), _ENV("NCCL_P2P_LEVEL")
SHM_DISABLE, IB_DISABLE, NET = _ENV("NCCL_SHM_DISABLE", "0"), _ENV("NCCL_IB_DISABLE", "0"), _ENV("NCCL_NET")
NET_GDR_LEVEL, IB_GDR_LEVEL = _ENV("NCCL_NET_GDR_LEVEL"), _ENV("NCCL_IB_GDR_LEVEL")
NET_GDR_READ, NET_GDR_C2C = _ENV("NCCL_NET_GDR_READ"), _ENV("NCCL_NET_GDR_C2C", "1", (2, 26))
DMABUF_ENABLE, LAUNCH_MODE = _ENV("NCCL_DMABUF_ENABLE", "1"), _ENV("NCCL_LAUNCH_MODE", "PARALLEL")
NVLS_ENABLE, CUMEM_ENABLE = _ENV("NCCL_NVLS_ENABLE", "2", (2, 17)), _ENV("NCCL_CUMEM_ENABLE", None, (2, 18))
PAT_ENABLE = _ENV("NCCL_PAT_ENABLE", "2", (2, 23))
MIN_CTAS, MAX_CTAS = _ENV("NCCL_MIN_CTAS", None, (2, 17)), _ENV("NCCL_MAX_CTAS", None, (2, 17))
MAX_NCHANNELS = _ENV("NCCL_MAX_NCHANNELS")
DEBUG_SUBSYS = _ENV("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV")

TUNER_CONFIG_FILE = File("nccl", "ext-tuner/example/README.md", "env")("NCCL_TUNER_CONFIG_FILE", None, (2, 19))
"""Since the version that brought tuner plugins (ncclTunerPlugin_v1)."""

MODULE_LOADING = File("cuda", "CUDA C programming guide, lazy loading", "env")(
    "CUDA_MODULE_LOADING", "LAZY", (11, 7), restores=True
)
LAZY_BY_DEFAULT = (12, 2)
"""The CUDA from which that is so."""
