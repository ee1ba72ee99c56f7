"""Entity groups. Field names are left out on purpose: they changed between releases, so nothing may rely on them."""

DCGM_FE_NONE = 0
DCGM_FE_GPU = 1
DCGM_FE_SWITCH = 3
