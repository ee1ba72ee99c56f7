"""Names that Transformers' Trainer, Accelerate and PEFT give to files, as their sources have them.

Sources: ``Trainer._save_checkpoint`` of transformers 4.40 to 5.24, ``Accelerator.save_state`` and ``utils/fsdp_utils.py`` of
accelerate 0.30 to 1.15. The Trainer under FSDP and DeepSpeed saves by Accelerate's functions, so the names of both occur
in one folder.
"""

from __future__ import annotations

import re

STATE = "trainer_state.json"  # the Trainer's last file
ARGUMENTS = "training_args.bin"
INCOMPLETE = "checkpoint-is-incomplete.txt"
_COUNTED = r"(?:_\d+|-\d{5}-of-\d{5})?"  # the second model of a program, a part of a large one

# Neither calls a file model.bin: that is CTranslate2's name for its own.
_NAMED = rf"(?:pytorch_model|adapter_model){_COUNTED}\.bin|(?:pytorch_|adapter_)?model{_COUNTED}\.safetensors"
_WEIGHTS = rf"{_NAMED}|[^/]*fsdp[^/]*\.bin"
_OPTIMIZER = r"optimizer(?:_\d+)?\.(?:pt|bin)"
_OPTIMIZER_OF_A_RANK = r"optimizer(?:_\d+)?_rank\d+\.bin"  # FSDP without collectives
_SCHEDULES = r"scheduler\.pt|(?:scheduler|sampler|dl_state_dict)(?:_\d+)?\.bin|scaler\.pt"
_RANDOM = r"rng_state(?:_\d+)?\.pth|random_states_\d+\.pkl"
_CUSTOM = r"custom_checkpoint_\d+\.pkl"  # Accelerate's, of objects that the program registered

OPTIMIZER = re.compile(_OPTIMIZER)
CUSTOM = re.compile(_CUSTOM)
RANDOM = re.compile(_RANDOM)
RNG_STATE = re.compile(r"rng_state(?:_(\d+))?\.pth")  # the Trainer's
RANDOM_OF_A_RANK = re.compile(r"(rng_state_|random_states_)(\d+)(\.pth|\.pkl)")
RANDOM_STATES = re.compile(r"random_states_(\d+)\.pkl")  # Accelerate's
OF_A_RANK = re.compile(r"([^/]*_fsdp(?:_\d+)?_rank|optimizer(?:_\d+)?_rank)(\d+)(\.bin)")
# All files of theirs that hold a part of a state.
OWN = re.compile(
    "|".join((_WEIGHTS, _OPTIMIZER, _OPTIMIZER_OF_A_RANK, _SCHEDULES, _RANDOM, _CUSTOM, re.escape(ARGUMENTS)))
)
_OWN_FSDP = r"pytorch_model_fsdp(?:_\d+)?(?:_rank\d+)?\.bin"
_INDEXES = r"(?:pytorch_|adapter_)?model(?:_\d+)?\.(?:bin|safetensors)\.index\.json"
_OWN_WEIGHTS = f"{_NAMED}|{_OWN_FSDP}|{_INDEXES}"
OWN_WEIGHTS = re.compile(_OWN_WEIGHTS)
# What their main process writes before the file that ends a save: trainer_state.json, or its own random_states_0.pkl.
_OWN_BEFORE_END = "|".join((_OWN_WEIGHTS, _OPTIMIZER, _SCHEDULES, r"rng_state\.pth", r"(?s:.*)\.distcp"))
OWN_BEFORE_END = re.compile(_OWN_BEFORE_END)
# With what somebody's callback saves in the same step (pytorch_model_ema.bin), or a user adds later.
_MORE_WEIGHTS = r"[^/]+\.safetensors|[^/]+\.index\.json|[^/]*fsdp[^/]*\.bin|(?:pytorch_model|adapter_model)[^/]*\.bin"
BEFORE_END = re.compile(f"{_OWN_BEFORE_END}|{_MORE_WEIGHTS}")
# Folder of FSDP, which holds a save of DCP.
FSDP_MODEL = re.compile(r"pytorch_model_fsdp_\d+")
