"""Tests nodes that Sentinel drained, has them reset or rebooted where cause and site ask for it, and returns them.

A drain of ours that was done makes a record (``state``). With every snapshot of Slurm each record is looked at (``turns``):
``next_step`` says what the node needs now. The rules (``rules/returns.toml``) say by cause what is asked for, the settings
(``[returns]``) what is allowed. What failed twice within ``returns.within_s`` stays drained for repair, and people are told
once. Only a drain that is ours and unchanged is tested and returned: whoever resumes the node, or writes another reason,
takes it over. A node that was returned is on probation: the jobs that it hurt do not get it.

Records are in the store with the decision that changes them, before the effect that follows. An effect whose answer is lost
with the daemon is done again after its deadline; it counts neither for nor against the node.
"""
