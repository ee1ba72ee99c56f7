"""Lines of a log that are source text, and exceptions that Python or a check raised: no word of what a machine did."""

from __future__ import annotations

import re

from sentinel.config.rules import LEADING, Form, Role, Rule
from sentinel.evidence.logs.frames import CELL
from sentinel.evidence.logs.prefixes import SYSTEMD
from sentinel.evidence.logs.writers import begins_as, line_above, text_above
from sentinel.model.records import Cause

# A line of source that a traceback quotes names an error that may never have happened. Where ranks write at once, another
# rank's line may begin behind its bracket.
_QUOTED = re.compile(
    rb"[^\n]{0,100}?(?: {4,}|\t)raise [\w.]{1,80}\((?:[\w.]{1,80}(?:Error|Exception))?\s*$|"
    rb"[^\n]{0,100}?(?: {4,}|\t)(?:raise|if|elif|return|except|assert|with|for|while|yield|warnings\.warn)[ (]"
    rb"[^\n]{0,200}(?:[(:,\[{]|\))(?: {1,8}#[^\n]{0,120})?\s*$",
    re.MULTILINE,
)
# What Python, or a check in a program, says is no word of the machine's, whatever words it uses.
MACHINES = frozenset({Form.KERNEL, Form.DCGM, Form.SLURM, Form.FABRIC, Form.STORAGE})
RAISED = re.compile(
    rb"(?:^|[\s\]:>.])(?:Assertion|Value|Key|Type|Index|Attribute|Name|NotImplemented|Import|ModuleNotFound|Syntax|ZeroDivision)Error"
    rb"(?:: |$)",
    re.MULTILINE,
)
# The same of any exception's class; a rule that names it knows the words, one of role fallback only suspects them.
_RAISED_ANY = re.compile(rb"(?:^|[\s\]:>.])[A-Z]\w{2,60}(?:Error|Exception)(?:: |$)", re.MULTILINE)
_FRAME = re.compile(rb"[^\n]{0,100}?File \"[^\"\n]{1,300}\", line \d{1,7}, in [^\n]{1,80}$", re.MULTILINE)
# What a shell (set -x), NHC or ninja is about to run, lines of a script that is shown, of source that a compiler quotes, an
# option in a help text.
_OF_A_SHELL = re.compile(
    rb"(?:\d{1,5}: )?\+{1,4} (?!exited|killed|slurmstepd|srun: |kernel|NVRM)[\w\[./(]"  # +++ killed by SIGSEGV +++: strace
    rb"|\s{0,12}(?:#SBATCH\b|(?:if|elif|while|until) {1,8}(?:! )?(?:\[|grep\b|test\b)|echo {1,4}[\"']|trap {1,4}[\"'])"
    rb"|[^\n]{0,60}\bRunning check: {1,4}\"?check_"
    rb"|\[\d{1,4}/\d{1,4}\] (?:/\S{1,200}/)?(?:ccache |c\+\+|g\+\+|gcc|cc|clang|nvcc|hipcc)\S{0,12} {1,4}-"
    rb"|\s{2,8}\d{1,6} \|  |\s{1,8}-{1,2}[A-Za-z][\w-]{1,40}(?:[ =,][A-Z{<\[][^\n]{0,60})? {2,40}[a-z]"
)
# A collector may write what it collected behind a hash: those lines have a time, or their own writer's name.
_COMMENT = re.compile(rb"\s{0,8}#{1,8} (?!\[ {0,8}\d|slurm|NVRM: |[A-Z][a-z]{2} [ \d]\d \d\d:|\d{4}-\d\d)")
# Source that IPython draws around the line of each frame, numbered; what stands above it; and what it begins with, where the
# exception itself is told at the end.
_DRAWN = re.compile(rb"[^\w\n]{0,10}(?:-{1,8}> )?(\d{1,6})(?: [^\n]*)?$", re.MULTILINE)
_DRAWN_FRAME = re.compile(rb"(?:File )?(?:~|/|[A-Za-z]:\\)[^\n]{1,300}\bin [\w<]|%s" % CELL, re.MULTILINE)
_HEADING = re.compile(rb"([A-Za-z_][\w.]{2,80}) {2,80}Traceback \(most recent call last\)\s*$", re.MULTILINE)
DRAWN = 2000  # bytes above a line in which the frame is looked for whose source it is
TRACEBACK = 16_384  # bytes below the heading of a traceback in which its exception is looked for
NEAR = 2400  # bytes above a line in which its statement's lines are looked for, among other writers'
STATEMENT = 1200  # bytes of a statement's source that are looked at
_FURTHER_IN = re.compile(rb"[^\n]{0,100}?(?: {4,}|\t)\S")
_FRAME_LINE = re.compile(rb"([^\n]{0,100}?)File \"[^\"\n]{1,300}\", line \d{1,7}, in [^\n]{1,80}\n$")


def says_nothing(block: bytes, start: int, end: int, rule: Rule) -> bool:
    """Whether the line is no place for what the rule looks for."""
    if rule.role is Role.PROGRESS:
        return False  # most of a log
    if is_python_output(block, start, end, rule) or is_shell(block, start, end, rule):
        return True
    libraries = rule.form is Form.PROGRAM and rule.points_to is Cause.SOFTWARE_ENV
    return libraries and SYSTEMD.match(block, start, end) is not None


def is_shell(block: bytes, start: int, end: int, rule: Rule) -> bool:
    """Whether the line is a shell's source, or a remark behind a hash that names what a machine says.

    A program may print its own words behind a hash, as Java does when it crashes.
    """
    if (rule.role in LEADING or rule.form in MACHINES) and _OF_A_SHELL.match(block, start, end):
        return True
    return rule.form in MACHINES and _COMMENT.match(block, start, end) is not None


def is_quoted(block: bytes, start: int, end: int) -> bool:
    """Whether a traceback quotes the line, or says what it is of again at its end."""
    return is_source(block, start, end) or _is_drawn(block, start, end) or _is_heading(block, start, end)


def is_source(block: bytes, start: int, end: int) -> bool:
    """Whether the line is source that a traceback quotes: below a frame, and further in than that.

    Python 3.13 quotes all lines of a statement, with marks between them.
    """
    if _QUOTED.match(block, start, end):
        return True
    begin = (
        start - 1 if block.startswith(b"\n\n", start - 2) and start > 2 else start
    )  # a page has put empty lines between
    further_in = block.find(b"  ", start, min(end, start + 80)) >= 0
    if not further_in and not block.startswith(b"File ", block.rfind(b"\n", 0, max(begin - 1, 0)) + 1):
        return False
    above = line_above(block, begin, 500)
    frame = _FRAME_LINE.match(above)
    if frame is not None and not frame[1]:  # a page has taken what lines begin with
        return not _FRAME.match(block, start, end) and _RAISED_ANY.search(block, start, end) is None
    if frame is not None:
        return begins_as(block[start:end], frame[1] + b"  ")
    continued = _FURTHER_IN.match(above) is not None and _RAISED_ANY.search(block, start, end) is None
    return continued and _of_a_statement(block, start, end)


def _is_drawn(block: bytes, start: int, end: int) -> bool:
    """Whether the line is source with its number, in a row that begins below a frame."""
    line = _DRAWN.match(block, start, end)
    if line is None:
        return False
    number = int(line[1])
    for above in reversed(text_above(block, start, DRAWN).split(b"\n")[:-1]):
        line = _DRAWN.fullmatch(above)
        if line is None or int(line[1]) != number - 1:
            return _DRAWN_FRAME.match(above) is not None
        number -= 1
    return False


def _is_heading(block: bytes, start: int, end: int) -> bool:
    """Whether the line names the exception that stands at the end of the traceback, with what it says."""
    line = _HEADING.match(block, start, end)
    return line is not None and block.find(b"\n%s:" % line[1], end, end + TRACEBACK) >= 0


def _of_a_statement(block: bytes, start: int, end: int) -> bool:
    """Whether all lines between the line and the frame above it are further in than the frame."""
    between = [block[start:end]]
    begin = max(0, start - NEAR)  # not as far as a writer's lines are looked for elsewhere: this is asked line by line
    for line in reversed(text_above(block[begin:end], start - begin, STATEMENT).split(b"\n")[:-1]):
        frame = _FRAME_LINE.match(line + b"\n")
        if frame is not None:
            return all(begins_as(other, frame[1] + b"  ") for other in between)
        if line and not _FURTHER_IN.match(line):
            return False
        between.extend([line] if line else [])
    return False


def is_python_output(block: bytes, start: int, end: int, rule: Rule) -> bool:
    """Whether the line is a frame of a traceback, or an exception that a program raised: no word of a machine's."""
    if rule.form is Form.PROGRAM:
        return False
    if _FRAME.match(block, start, end):
        return True
    raised = _RAISED_ANY if rule.role is Role.FALLBACK else RAISED
    return rule.form in MACHINES and raised.search(block, start, end) is not None
