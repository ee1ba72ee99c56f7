"""Lines of the kernel's log that carry names which users choose, and names made of what draining rules look for.

The shapes are those that Linux and NVIDIA's driver print. ``{}`` is where the name stands; nothing else is a user's.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from re import _constants as sre_constants
from re import _parser as sre_parse
from typing import Any

from sentinel.config.rules import OWN_LOG, Rule, Rules
from sentinel.evidence.logs.machine_logs import said
from sentinel.model.records import Source

COMM = 15  # bytes of a program's or thread's name
INTERFACE = 15  # without blanks, "/" and ":"
PREFIX = 127  # of nftables' log; iptables has 29
PATH = 400  # a path may be 4096, a line of the kernel's not
INNOCENT = "python3"


@dataclass(frozen=True)
class Shape:
    form: str
    limit: int
    interface: bool = False

    def line(self, name: str) -> str:
        """The line with as much of the name as the kernel takes."""
        if self.interface:
            name = re.sub(r"[\s/:]", "-", name)
        cut = name.encode("utf-8", "surrogateescape")[: self.limit]
        return self.form.replace("{}", cut.decode("utf-8", "surrogateescape"))


_OF_PROGRAMS = (
    "{}[4711]: segfault at 0 ip 00007f3a sp 00007ffe error 4 in libc-2.31.so[7f3a+15a000] likely on CPU 3",
    "traps: {}[4711] general protection fault ip:55d0 sp:7ffd error:0 in a.out[55d0+1000]",
    "traps: {}[4711] trap invalid opcode ip:55d0 sp:7ffd error:0 in a.out[55d0+1000]",
    "{}[4711]: bad frame in rt_sigreturn frame:00007ffd ip:7f3a sp:7ffd orax:ffffffffffffffff in libc.so.6[7f3a+1000]",
    "{}[4711] vsyscall attempted with vsyscall=none ip:ffffffffff600000 cs:33 sp:7ffd ax:0 si:0 di:0",
    "{}/4711: potentially unexpected fatal signal 11.",
    "{}: potentially unexpected fatal signal 11.",
    "INFO: task {}:4711 blocked for more than 120 seconds.",
    "task:{} state:D stack:    0 pid: 4711 ppid:     1 flags:0x00004002",
    "watchdog: BUG: soft lockup - CPU#18 stuck for 23s! [{}:4711]",
    "NMI watchdog: BUG: soft lockup - CPU#18 stuck for 23s! [{}:4711]",
    "CPU: 3 PID: 4711 Comm: {} Not tainted 5.15.0-91-generic #101-Ubuntu",
    "CPU: 3 UID: 1000 PID: 4711 Comm: {} Kdump: loaded Tainted: P           OE      6.11.0 #1",
    "{}: page allocation failure: order:4, mode:0x40cc0(GFP_KERNEL|__GFP_COMP), nodemask=(null),cpuset=/,mems_allowed=0",
    "{}: vmalloc error: size 8589934592, exceeds total pages, mode:0xcc0(GFP_KERNEL), nodemask=(null)",
    "{} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "[   4711]  1000  4711   123456    12345   123456        0             0 {}",
    "Memory cgroup out of memory: Killed process 4711 ({}) total-vm:325364kB, anon-rss:47744kB, file-rss:4908kB",
    "Out of memory: Killed process 4711 ({}) total-vm:325364kB, anon-rss:47744kB, file-rss:4908kB, shmem-rss:0kB",
    "Out of memory: Kill process 4711 ({}) score 900 or sacrifice child",
    "Killed process 4711 ({}) total-vm:325364kB, anon-rss:47744kB, file-rss:4908kB",
    "oom_reaper: reaped process 4711 ({}), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,mems_allowed=0,oom_memcg=/a,task_memcg=/a,task={},pid=4711,uid=1000",
    "NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name={}, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS faulted",
    "NVRM: Xid (PCI:0000:3b:00): 43, pid=4711, name={}, Ch 00000008",
    "NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:00): 109, pid=4194303, name={}, channel 0x0000000a",
    "NVRM: Xid (PCI:0000:3b:00): 13, pid=4711, name={}",
    "NVRM: Xid (PCI:0000:3b:00): 13, pid=4711, name={}, Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0)",
    "NVRM: API mismatch: the client '{}' (PID 4711)",
    "EXT4-fs error (device sda1): ext4_lookup:1855: inode #2: comm {}: iget: bad extra_isize",
    "EXT4-fs warning (device sda1): ext4_dx_add_entry:2461: inode #2: comm {}: Directory index full",
    "BUG: Bad page state in process {}  pfn:77aa0",
    "BUG: Bad page map in process {}  pte:800000 pmd:77aa0",
    "BUG: Bad rss-counter state mm:00000000 type:MM_FILEPAGES val:1 Comm:{} Pid:4711",
    "Memory failure: 0x12345: Sending SIGBUS to {}:4711 due to hardware memory corruption",
    "amdgpu 0000:03:00.0: amdgpu: Process information: process {} pid 4711 thread {} pid 4711",
    "amdgpu 0000:03:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 vmid:8 pasid:32769, for process {} pid 4711)",
    "mmap: {} (4711): VmData 4096 exceed data ulimit 1. Update limits or use boot option ignore_rlimit_data.",
    "{} (4711): drop_caches: 3",
    "{} (4711) used greatest stack depth: 11928 bytes left",
    "{} (4711): attempted to duplicate a private mapping with mremap.  This is not supported.",
    'cgroup: {} (4711) created nested cgroup for controller "memory" which has incomplete hierarchy support.',
    "warning: `{}' uses 32-bit capabilities (legacy support in use)",
    "process `{}' is using obsolete setsockopt SO_BSDCOMPAT",
    "{} uses obsolete (PF_INET,SOCK_PACKET)",
    "Lockdown: {}: /dev/mem,kmem,port is restricted; see man kernel_lockdown.7",
    'audit: type=1701 audit(1700000000.123:4): auid=1000 uid=1000 ses=1 pid=4711 comm="{}" exe="/tmp/a" sig=11 res=1',
    'ptrace attach of "{}"[4711] was attempted by "a"[4712]',
    "x86/split lock detection: #AC: {}/4711 took a split_lock trap at address: 0x401173",
    "netlink: 4 bytes leftover after parsing attributes in process `{}'.",
    "netlink: '{}': attribute type 1 has an invalid length.",
    "{}[4711]: unhandled exception: DABT (lower EL), ESR 0x92000006, level 2 translation fault in a.out[400000+1000]",
    "Alignment trap: {} (4711) PC=0x00010430 Instr=0xe5932000 Address=0x00021029 FSR 0x001",
    "{} (4711): /proc/4711/oom_adj is deprecated, please use /proc/4711/oom_score_adj instead.",
    "BUG: scheduling while atomic: {}/4711/0x00000002",
    "BUG: sleeping function called from invalid context at a.c:4, in_atomic(): 1, irqs_disabled(): 0, pid: 4711, name: {}",
    "NVRM: Xid (PCI:0000:3b:00): 45, pid=4711, name={}, Ch 00000008",
    "signal: {}[4711] overflowed sigaltstack",
    "futex_wake_op: {} tries to shift op by 32; fix this program",
    "capability: warning: `{}' uses deprecated v2 capabilities in a way that may be insecure",
    # Whatever else begins with a program's name.
    "{}: the kernel goes on to say something",
    "{} does something",
    "{}, of which the kernel says something",
    "NFS: {}: client sent invalid name",
    "request_module: modprobe {} cannot be processed, kmod busy with 50 threads for more than 5 seconds now",
)
_OF_PATHS = (
    "overlayfs: failed to resolve '{}': -2",
    'overlayfs: unrecognized mount option "{}" or missing value',
    "tmpfs: Bad value for '{}'",
    "fuse: Unknown parameter '{}'",
    "process '{}' started with executable stack",
    "a.out[4711]: segfault at 0 ip 00007f3a sp 00007ffe error 4 in {}[7f3a+15a000]",
    'audit: type=1400 audit(1700000000.123:4): apparmor="DENIED" operation="open" profile="{}" name="{}" pid=4711 comm="a"',
    "SELinux: security_context_str_to_sid({}) failed with errno=-22",
    "coredump: 4711(a.out): over core_pipe_limit, skipping core dump of {}",
    "device-mapper: ioctl: Unable to rename non-existent device, {} to {}",
    "device-mapper: table: device {} too small for target",
    "BTRFS: device label {} devid 1 transid 7 /dev/mapper/{} scanned by mount (4711)",
    "cgroup: fork rejected by pids controller in /{}",
    "Memory cgroup stats for /{}:",
    "Task in /{} killed as a result of limit of /{}",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={},mems_allowed=0,oom_memcg=/{},task_memcg=/{},task=a,pid=4711,uid=1000",
    "systemd[1]: {}.service: Main process exited, code=exited, status=1/FAILURE",
    "systemd[1]: Started {}.",
    "systemd[1]: Mounted {}.",
    "usb 1-1: Product: {}",
    "usb 1-1: SerialNumber: {}",
    "input: {} as /devices/virtual/input/input7",
    "hid-generic 0003:046D:C31C.0001: input,hidraw0: USB HID v1.10 Keyboard [{}] on usb-0000:00:14.0-1/input0",
    "CIFS: VFS: \\\\{} Send error in SessSetup = -13",
    'audit: type=1300 audit(1700000000.123:4): arch=c000003e syscall=59 exe="{}" key="{}"',
    "scsi 7:0:0:0: Direct-Access     {} 0001 PQ: 0 ANSI: 6",
)
_OF_INTERFACES = (
    "{}: renamed from {}",
    "{}: renamed from veth1",
    "veth1: renamed from {}",
    "IPv6: ADDRCONF(NETDEV_CHANGE): {}: link becomes ready",
    "IPv6: {}: IPv6 duplicate address fe80::1 used by 00:00:00:00:00:01 detected!",
    "br0: port 1({}) entered blocking state",
    "{}: port 1({}) entered disabled state",
    "bond0: (slave {}): link status definitely down, disabling slave",
    "{}: (slave {}): link status definitely down, disabling slave",
    "{}: Enslaving {} as an active interface with an up link",
    "device {} entered promiscuous mode",
    "{}: entered promiscuous mode",
    "{}: Caught tx_queue_len zero misconfig",
    "NETDEV WATCHDOG: {} (veth): transmit queue 0 timed out",
)
_OF_PACKETS = (
    "{}IN=lo OUT= MAC=00:00:00:00:00:00:00:00:00:00:00:00:08:00 SRC=127.0.0.1 DST=127.0.0.1 LEN=84 TOS=0x00 PROTO=ICMP",
    "{}IN= OUT=lo SRC=127.0.0.1 DST=127.0.0.1 LEN=60 TOS=0x10 PREC=0x00 TTL=64 ID=1 DF PROTO=TCP SPT=1 DPT=2",
    "{}IN= OUT=a,b SRC=0000:0000:0000:0000:0000:0000:0000:0001 DST=0000:0000:0000:0000:0000:0000:0000:0001 LEN=80",
    "{}IN=a OUT= ARP HTYPE=1 PTYPE=0x0800 OPCODE=1",
    "{}IN=a OUT= MACSRC=00:00:00:00:00:01 MACDST=00:00:00:00:00:02 MACPROTO=0800",
)
SHAPES = (
    *(Shape(form, COMM) for form in _OF_PROGRAMS),
    *(Shape(form, PATH) for form in _OF_PATHS),
    *(Shape(form, INTERFACE, interface=True) for form in _OF_INTERFACES),
    *(Shape(form, PREFIX) for form in _OF_PACKETS),
)


def draining(rules: Rules, source: Source) -> list[Rule]:
    """Rules whose lines can drain a node when ``source`` says them."""
    return [
        rule for rule in rules.rules if rule.convicts and (source in rule.anchors or OWN_LOG.get(rule.form) is source)
    ]


def words_of(rule: Rule) -> Iterator[str]:
    """Names that a user could give so that this rule looks up: its examples, whole and from each of their words on."""
    for example in rule.match:
        message = said(Source.KERNEL, example).text
        yield example
        for found in re.finditer(r"\S+", message):
            yield message[found.start() :]
            yield f"{found[0]}: {message}"
        for at in range(0, len(message), 5):
            yield message[at : at + COMM]
    yield from re.findall(r"[A-Za-z][A-Za-z_ .-]{4,}", rule.pattern)
    ends = shortest(rule.pattern)
    yield from ends
    for beginning in shortest(rule.anchors[Source.KERNEL]) if Source.KERNEL in rule.anchors else ():
        yield beginning
        for end in ends:
            shared = max(
                size for size in range(len(beginning) + 1) if end.startswith(beginning[len(beginning) - size :])
            )
            yield beginning + end[shared:]


def shortest(expression: str, most: int = 60) -> list[str]:
    """Texts that an expression fits, one as short as can be for each way through its alternatives, at most so many."""
    return _texts(sre_parse.parse(expression), most)


def _texts(parsed: Any, most: int) -> list[str]:
    parts: list[list[str]] = []
    for kind, value in parsed:
        match kind:
            case sre_constants.LITERAL:
                parts.append([chr(value)])
            case sre_constants.IN:
                parts.append([_one_of(value)])
            case sre_constants.BRANCH:
                parts.append([text for branch in value[1] for text in _texts(branch, most)])
            case sre_constants.SUBPATTERN:
                parts.append(_texts(value[3], most))
            case sre_constants.MAX_REPEAT | sre_constants.MIN_REPEAT:
                least, _, inner = value
                parts.append([text * least for text in _texts(inner, most)] if least else [""])
            case sre_constants.ANY:
                parts.append(["x"])
    return ["".join(found) for found in itertools.islice(itertools.product(*parts), most)]


def _one_of(members: Any) -> str:
    kind, value = members[0]
    if kind is sre_constants.LITERAL:
        return chr(value)
    if kind is sre_constants.RANGE:
        return chr(value[0])
    numbers, blanks = sre_constants.CATEGORY_DIGIT, sre_constants.CATEGORY_SPACE
    return {numbers: "1", blanks: " "}.get(value, "a") if kind is sre_constants.CATEGORY else "x"


def escaped(text: str) -> str:
    """As /dev/kmsg writes it: bytes that are not printable ASCII, and the backslash, in hexadecimal."""
    as_bytes = text.encode("utf-8", "surrogateescape").decode("latin-1")
    return re.sub(r"[^ -\[\]-~]", lambda found: f"\\x{ord(found[0]):02x}", as_bytes)
