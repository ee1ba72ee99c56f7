"""What ``sentinel classify`` looks for besides the rules: lines that look like errors, and lines that report success.

They speak for no cause. They say, where no cause is found, whether nothing failed or nothing was recognised.
"""

from __future__ import annotations

from dataclasses import replace

from sentinel.classify.unanswered import ENDED, EPOCH, FINISHED, UNREAD
from sentinel.config.rules import Role, Rule, Rules

_ERROR = (
    r"(?i)\b(?:error|fatal|exception|fail(?:ed|ure|s)?|abort(?:ed|ing)?|panic|segfault|killed|traceback|critical|"
    r"cannot|could not|unable to|timed out|unexpected(?:ly)?|refused|denied|corrupt(?:ed|ion)?)\b|[A-Za-z]Error\b|\bFATAL\b"
)
_DONE = (
    r"(?i)\[after training is done\]|\btraining (?:is )?(?:completed?|finished|done)\b|\b(?:finished|completed) training\b|"
    r"`?Trainer\.fit`? stopped: `?max_(?:epochs|steps)|\bCOMPLETED\s{1,8}0:0|exiting program after \d{1,9} "
    r"|\bworker group (?:successfully finished\b|finished \((?:WorkerState\.)?SUCCEEDED\))"
    r"|\btrain_runtime\b"
    r"|\"run_stop\"[^\n]{0,200}\"status\": \"success\""  # MLPerf's logging
    r"|\ball \d{1,6} epochs (?:are )?done\b|\bfinished; best\b|\brun of \d{1,9} (?:steps|iterations) passed\b"
    r"|\b(?:max_(?:iters|steps)|(?:target|final|last|maximum) (?:step|iteration|epoch)s?(?: \d{1,9})?) reached(?:$|[,.;!])"
    r"|\breached (?:the )?(?:target|final|last|max(?:imum)?)[ _](?:number of )?(?:step|iter|epoch)\w{0,8}\b"
    r"|\b(?:trainer|train\w{0,3}\.py)\b[^\n]{0,60}\bexit(?:ed)?(?: with)?(?: code| status)?[ =:]{0,2}0$"
    r"|\bdone training in \d|^=+ \d{1,6} passed\b[^\n]{0,60} in [\d.]{1,12}s\b"
    r"|\bJob 'raysubmit_\w{1,40}' succeeded\b|\b(?:sweep|study) done: "
    r"|\b(?:done|finished|completed|success\w{0,6})[,;:.]? (?:exit(?:ing|ed)?|rc)(?: with)?(?: code| status)?[ =:]{0,2}0$"
    r"|\.py: exiting 0$|: exit(?: code| status)? 0(?::0)?,? elapsed\b"
    r"|\b(?:finished|completed|ended|done) (?:without (?:an? |any )?(?:error|failure|problem)|with 0 (?:error|failure))"
    r"|\b(?:benchmark|sweep) (?:is )?(?:completed?|finished|done)\b[^\n]{0,40}\b0 (?:failures|errors)\b"
    r"|\bfinished all \d{1,9} (?:steps|epochs|iterations)\b"
    # Of simulations and the tools of workflows, tests and health checks.
    r"|\bSUCCESS COMPLETE\b|^ {0,4}JOB DONE\.|\bNormal termination of Gaussian\b|\*{2,4}ORCA TERMINATED NORMALLY\*{2,4}"
    r"|\bPROGRAM ENDED AT\b|^Finished mdrun on|^Total wall time: \d|^WallClock: \d|\b100% tests passed, 0 tests failed\b"
    r"|\breached required accuracy - stopping\b|\bSUCCEEDED, exitCode: 0$"
    r"|\bFinished: SUCCESS$|\d{1,6} of \d{1,6} steps \(100%\) done$"
    r"|^(?:\s{0,8}\"?pass@1\"?: [\d.]|Best trial: )|\bStudy statistics: finished \d|\bDone\. best "
)
# Also said between two stages, by a server that was told to end, and by one whose engine crashed: it outlives no error.
_ENDED = r"(?i)\bresults? (?:saved|written)(?: (?:to|in|at))?\b\W{1,8}[\w./~-]{3}|\bApplication shutdown complete\."

# A line for each epoch, as plain loops and Keras print it: too far apart to tell a hang by, not to tell that it went on.
_EPOCH = r"\b[Ee]poch[ :=\[]{1,4}(?P<epoch>\d{1,6}) ?(?:/|of) ?\d{1,6}\b"


def with_unread(rules: Rules) -> Rules:
    """The rules, and these after them: a line that any other rule knows is not unread."""
    more = (
        Rule("unread-error", _ERROR, UNREAD, role=Role.FALLBACK),
        Rule("training-finished", _DONE, FINISHED, role=Role.PROGRESS),
        Rule("program-ended", _ENDED, ENDED, role=Role.PROGRESS),
        Rule("epoch-of", _EPOCH, EPOCH, role=Role.PROGRESS),
    )
    return replace(rules, rules=(*rules.rules, *more))
