"""A fault of the kernel is the module's in whose code it was."""

from __future__ import annotations

import dataclasses

from judged_lines import NOW, RULES, judge, log

from sentinel.classify import classify
from sentinel.model.records import (
    Cause,
    Evidence,
    Incident,
    Source,
)

REGISTERS = "RIP: 0010:os_map_user+0x79/0x940 [nvidia]"


def kernel(*lines: str, node: str = "n1") -> list[Evidence]:
    return log("\n".join(f"[  395.350871] {line}" for line in lines), node=node, source=Source.KERNEL)


def test_a_fault_of_the_kernel_is_the_modules_in_whose_code_it_was() -> None:
    fault = "BUG: unable to handle kernel NULL pointer dereference at 00000000000000b1"
    verdict = judge(kernel(fault, REGISTERS))
    assert (verdict.cause, verdict.drain) == (Cause.GPU_GSP_OR_DRIVER, ("n1",))
    assert judge(kernel(fault, "RIP: 0010:do_idle+0x80/0x110")).cause is Cause.NODE_OS_OR_HOST
    verdict = judge(kernel(fault, "RIP: 0010:ptlrpc_set_wait+0x1f/0x740 [ptlrpc]"))
    assert (verdict.cause, verdict.drain) == (Cause.NODE_OS_OR_HOST, ("n1",))  # its node is to be drained all the same


def test_registers_of_another_node_and_of_a_warning_move_no_fault() -> None:
    fault = "BUG: unable to handle kernel NULL pointer dereference at 00000000000000b1"
    warning = "WARNING: CPU: 3 PID: 4564 at kernel/fork.c:12 os_map_user+0x79/0x940 [nvidia]"
    assert judge(kernel(fault), kernel(warning, REGISTERS, node="n2")).drain == ("n1",)
    assert judge(kernel(warning, REGISTERS)).drain == ()
    assert judge(kernel(warning, REGISTERS, *["usb 1-1: reset"] * 60, fault)).cause is Cause.NODE_OS_OR_HOST


def test_a_site_may_take_all_weight_from_the_rule_of_a_module() -> None:
    fault = "BUG: unable to handle kernel NULL pointer dereference at 00000000000000b1"
    rules = tuple(
        dataclasses.replace(rule, weights={Cause.GPU_GSP_OR_DRIVER: 0.0}) if rule.id == "oops-gpu" else rule
        for rule in RULES.rules
    )
    evidence = tuple(kernel(fault, REGISTERS))
    found = classify(Incident("i", NOW, NOW, evidence=evidence), rules=dataclasses.replace(RULES, rules=rules), now=NOW)
    assert found.cause is Cause.NODE_OS_OR_HOST
