"""What of the kernel's messages is a user's: names, cut out so that no program is a fault by being called like one, and
messages that any user of a node can cause.

The kernel prints names of programs (at most 15 bytes of any kind), of control groups, of network interfaces in namespaces
of their own, and the prefixes of netfilter's log rules. Where a message begins with such a name no anchor of a rule fits it;
what is cut here stands inside messages whose beginning is the kernel's. The forms are those of Linux 4.18 to 6.12 and of
NVIDIA's driver.
"""

from __future__ import annotations

import re

CUT = "_"  # what stands in place of a name

# /dev/kmsg writes each byte outside printable ASCII, and the backslash, as \xNN.
_COMM = r"(?:\\x[0-9a-f]{2}|[^\n]){0,15}"
# A packet that a netfilter rule logs: PREFIX IN=... OUT=... and its addresses. The prefix is at most 127 characters, of
# whoever owns the network namespace. No program's name is long enough to hold all of what must follow it.
_PACKET = re.compile(
    r"IN=\S{0,60} OUT=\S{0,60} (?:[^\n]{0,400}?SRC=[0-9A-Fa-f.:]{2,40} DST=|[^\n]{0,400}?(?:ARP HTYPE=|MACPROTO=)|TRUNCATED)"
)
# What an interface prints of itself and of another one: both names are those of whoever owns the network namespace.
_INTERFACE = re.compile(
    r"^\S{1,60}: (renamed from |port \d{1,5}\(|\(slave |Setting |Adding |Enslaving |Removing |Releasing |Port device |"
    r"link status |making interface ).*",
    re.S,
)
# Of the OOM killer's report the service whose process was killed, which only root can name; a cgroup's name that holds the
# same words makes them stand there twice.
_SERVICE = re.compile(
    r"^(oom-kill:constraint=CONSTRAINT_NONE),[^\n]{0,400},(global_oom,task_memcg=/system\.slice/[\w@.:\\-]{1,80}\.service),"
)
# A word of every such message, the form of its name, and what is left of it. Most messages are of none of these forms, and
# the search for a word takes a tenth of the time.
_CUTS = tuple(
    (word, re.compile(pattern, re.S), replacement)
    for word, pattern, replacement in (
        # NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:00): 31, pid=7, name=python3, Ch 00000008: the longest that can be
        # the name goes.
        (
            "NVRM: Xid (",
            rf"^(NVRM: Xid \([^)\n]{{0,60}}\): \d{{1,4}}, pid=[^,\n]{{0,24}}, name=){_COMM}(?=,|$)",
            rf"\1{CUT}",
        ),
        ("NVRM: API ", rf"^(NVRM: API mismatch: the client '){_COMM}(' \()", rf"\1{CUT}\2"),
        ("INFO: task ", rf"^(INFO: task ){_COMM}(:\d{{1,10}} blocked )", rf"\1{CUT}\2"),
        (" stuck for ", rf"( stuck for \d{{1,6}}s! \[){_COMM}(:\d{{1,10}}\])", rf"\1{CUT}\2"),
        (" Comm:", rf"( Comm: ?){_COMM}( (?:Not tainted|Tainted|Kdump|Pid:))", rf"\1{CUT}\2"),
        (", mode:0x", rf"^{_COMM}(: [^\n]{{0,200}}, mode:0x)", rf"{CUT}\1"),  # page allocation failure, vmalloc error
        (" invoked oom-killer: ", rf"^{_COMM}( invoked oom-killer: )", rf"{CUT}\1"),
        # python3[7]: segfault at
        ("", rf"^{_COMM}(\[\d{{1,10}}\]| ?\(\d{{1,10}}\)|/\d{{1,10}})(?=[: ])", rf"{CUT}\1"),
        ("traps: ", rf"^(traps: ){_COMM}(\[\d{{1,10}}\] )", rf"\1{CUT}\2"),
        (" process ", rf"(Kill(?:ed)? process \d{{1,10}} \(){_COMM}(\))", rf"\1{CUT}\2"),
        ("oom_reaper: ", rf"^(oom_reaper: reaped process \d{{1,10}} \(){_COMM}(\), )", rf"\1{CUT}\2"),
        ("oom-kill:", r"^(oom-kill:constraint=\w{1,40}),.*", rf"\1,{CUT}"),
        ("Memory cgroup ", r"^(Memory cgroup (?:stats for |out of memory: OOM victim ))(?!Kill).*", rf"\1{CUT}"),
        ("cgroup: fork ", r"^(cgroup: fork rejected by pids controller in ).*", rf"\1{CUT}"),
        ("BUG: Bad ", rf"^(BUG: Bad .{{0,40}}in process ){_COMM}( +(?:pfn|pte):)", rf"\1{CUT}\2"),
        (" pid", rf"((?:process|thread) ){_COMM}( pid:? ?\d)", rf"\1{CUT}\2"),
        (": comm ", rf"(: comm ){_COMM}(: )", rf"\1{CUT}\2"),
        (
            "Memory failure: ",
            rf"^(Memory failure: 0x[0-9a-f]{{1,16}}: (?:Sending SIGBUS to|Killing) ){_COMM}(:\d{{1,10}} )",
            rf"\1{CUT}\2",
        ),
    )
)

# File systems on a loop device, and what holds them: an image file, which who owns it can cut off or overwrite while it is
# mounted. Only where the kernel prints a device: a file or a program may be called loop0, and the line be a disk's.
_IMAGE = re.compile(
    r"(?:\w{4,24}: )?(?:critical \w{4,16}(?: \w{4,12})?|I/O) error, dev loop\d|Buffer I/O error on dev(?:ice)? loop\d|"
    r"[\w-]{2,16}:? (?:\w{4,8} )?\((?:device )?loop\d|Aborting journal on device loop\d|"
    r"JBD2: (?:\w{1,16},? |-\d{1,3} ){0,12}(?:for|on) loop\d|loop\d{0,4}: |SQUASHFS error: |device-mapper: verity: 7:\d"
)
# What is true of a user's own library, of a network namespace of a user's own, or of limits that one user's processes reach.
# "JBD2: recovery failed" names no device; a disk's has its own line of ext4 behind it. dm-N may be an encrypted image; a
# disk under a volume has its own line.
_ANY_USER = re.compile(
    r"NVRM: API mismatch: |JBD2: recovery failed|bond\d{1,4}: |nf_conntrack: |neighbour: \w{2,8}_cache: |"
    r"ipv[46]: Neighbou?r table |IPv6: \S{1,24}: IPv6 duplicate address |\S{1,16}: received packet on \S{1,16} with own |"
    r"VFS: file-max limit |TCP: (?:out of memory|too many orphaned)|"
    r"Buffer I/O error on dev(?:ice)? dm-\d|"
    r"(?:mlx5_core [^\n]{1,60}: )?mlx5_cmd_(?:out_err|check):\d{1,5}:\(pid \d{1,10}\): [^\n]{1,60} failed, "
    r"status (?:limits exceeded|no resources|bad resource)|"
    r"(?:infiniband )?mlx5_\d{1,3}: create_qp:\d{1,5}:\(pid \d{1,10}\): Create QP type \d{1,3} failed"
)
# A task hangs where a disk or a server does not answer, and where a file server of a user's own does not (FUSE, in a user
# namespace). No name tells one from the other: a program may be called as a thread of the kernel is.
_HUNG = re.compile(r'INFO: task _:\d{1,10} blocked for more |"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" ')


def of_an_image(message: str) -> bool:
    """Whether the kernel tells of a mounted image, which is a file, and not of a disk of the host's."""
    return _IMAGE.match(message) is not None


def by_any_user(message: str) -> bool:
    """Whether any user of the node can cause what the kernel says here, with no fault of the host's; of images see above."""
    return _ANY_USER.match(message) is not None


def perhaps_by_any_user(message: str) -> bool:
    """Whether any user of the node can cause it, and broken parts of the host do as well: it says something beside a line of
    the host's own, and little by itself."""
    return _HUNG.match(message) is not None


def without_names(message: str) -> str:
    """A message of the kernel's with every name that a user chose replaced by ``_``.

    ``message`` is without its time stamp and facility. A logged packet keeps nothing of what stands before its addresses.
    """
    if " OUT=" in message and (packet := _PACKET.search(message)):
        return message[packet.start() :]
    if (service := _SERVICE.match(message)) and message.count("task_memcg=") == 1:
        return f"{service[1]},{CUT},{service[2]},{CUT}"
    if interface := _INTERFACE.match(message):
        return f"{CUT}: {interface[1]}{CUT}"
    for word, pattern, replacement in _CUTS:
        if word in message:
            message = pattern.sub(replacement, message)
    return message
