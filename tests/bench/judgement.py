"""Accuracy of the verdict: on generated two-faced failures, and on a folder of labelled logs where one is given.

Prints one JSON line per set: scope, cause, top-2, unknown, drains, calibration (reliability curve, expected error), and the
confusions. Labelled folder: cases.jsonl with id, cause, scope, should_drain_node, and ID/log.txt each.

Where several scopes are usual for the true cause (the interface of a rendezvous may be the application's or a link's), two
experts label the same log differently: "scope" is the labelled one, "scope_or_usual" also one that is usual for the cause.

Run: python tests/bench/judgement.py [--labelled FOLDER] [--each N] [--fit] [--drains]
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from judgement_cases import cases

from sentinel.adapters.hyperscan import best_screen
from sentinel.classify import classify
from sentinel.cli.offline.classify import judge_path
from sentinel.config.rules import Rules
from sentinel.config.rules_files import load_rules
from sentinel.evidence.logs.reader import Signatures
from sentinel.model.records import Cause, Scope

SCOPES = {
    "gpu_component": "gpu",
    "nic_or_link": "link",
    "node_wide": "node",
    "cluster_shared": "cluster",
    "application": "application",
}
APPLICATION = "application"
USUAL = {  # the taxonomy's, where a cause has another scope than the application's
    "nccl_hang_unknown": {"unknown"},
    "network_bootstrap": {"application", "link", "cluster"},
    "network_fabric": {"link", "cluster"},
    "gpu_memory_ecc": {"gpu"},
    "gpu_fallen_off_bus": {"gpu"},
    "gpu_nvlink": {"link"},
    "gpu_gsp_or_driver": {"gpu", "node"},
    "gpu_thermal_power": {"gpu"},
    "pcie": {"link"},
    "node_os_or_host": {"node"},
    "node_failure": {"node"},
    "filesystem_storage": {"cluster"},
    "disk_full": {"application", "node", "cluster"},
    "checkpoint_corrupt": {"application", "cluster"},
    "numerical_nan": {"application", "gpu"},
}


@dataclass(frozen=True)
class Answer:
    name: str
    true: str
    scope: str | None
    drain: bool | None
    got: str
    got_scope: str
    got_drain: bool
    confidence: float
    second: str


def generated(signatures: Signatures, rules: Rules, each: int, seed: int) -> list[Answer]:
    answers = []
    for case in cases(signatures, each=each, seed=seed):
        now = case.incident.updated_at + timedelta(hours=1)
        verdict = classify(case.incident, history=case.history, rules=rules, now=now)
        second = verdict.alternatives[0].cause.value if verdict.alternatives else ""
        scope = case.scope.value if case.scope is not None and case.scope is not Scope.UNKNOWN else None
        answers.append(
            Answer(
                case.name,
                case.cause.value,
                scope,
                case.drain,
                verdict.cause.value,
                verdict.scope.value,
                bool(verdict.drain),
                verdict.confidence,
                second,
            )
        )
    return answers


def labelled(folder: Path, signatures: Signatures) -> list[Answer]:
    answers = []
    now = datetime.now(UTC)
    for line in (folder / "cases.jsonl").read_text().splitlines():
        case = json.loads(line)
        got = judge_path(folder / case["id"] / "log.txt", signatures, now)
        drain = {"yes": True, "no": False}.get(case["should_drain_node"])
        second = got["alternatives"][0]["cause"] if got["alternatives"] else ""
        answers.append(
            Answer(
                case["id"],
                case["cause"],
                SCOPES.get(case["scope"]),  # none where nobody could tell
                drain,
                got["cause"],
                got["scope"],
                got["drain_recommended"],
                got["confidence"],
                second,
            )
        )
    return answers


def reliability(answers: list[Answer], bins: int = 5) -> tuple[list[dict[str, float]], float]:
    """Of answered cases by stated confidence: how many, mean confidence, share right; and the expected calibration error."""
    curve, error = [], 0.0
    answered = [a for a in answers if a.got != Cause.UNKNOWN.value]
    for i in range(bins):
        low, high = 0.3 + i * 0.7 / bins, 0.3 + (i + 1) * 0.7 / bins
        part = [a for a in answered if low <= a.confidence < high or (i == bins - 1 and a.confidence >= high)]
        if part:
            mean = sum(a.confidence for a in part) / len(part)
            right = sum(a.got == a.true for a in part) / len(part)
            curve.append({"n": len(part), "confidence": round(mean, 3), "right": round(right, 3)})
            error += len(part) / len(answered) * abs(mean - right)
    return curve, error


def summary(name: str, answers: list[Answer]) -> dict[str, object]:
    answered = [a for a in answers if a.got != Cause.UNKNOWN.value]
    n = max(len(answered), 1)
    scoped = [a for a in answered if a.scope is not None]
    curve, error = reliability(answers)
    confusion = Counter(f"{a.true} -> {a.got}" for a in answers if a.got != a.true)
    return {
        "set": name,
        "cases": len(answers),
        "scope": round(sum(a.scope == a.got_scope for a in scoped) / max(len(scoped), 1), 3),
        "scope_or_usual": round(
            sum(a.got_scope in {a.scope} | USUAL.get(a.true, {APPLICATION}) for a in scoped) / max(len(scoped), 1), 3
        ),
        "cause": round(sum(a.true == a.got for a in answered) / n, 3),
        "top_2": round(sum(a.true in {a.got, a.second} for a in answered) / n, 3),
        "unknown": round(1 - len(answered) / max(len(answers), 1), 3),
        "application_drained": sum(a.got_drain for a in answers if a.scope == APPLICATION and a.drain is False),
        "wrong_drains": sum(a.got_drain for a in answers if a.drain is False),
        "no_drain_cases": sum(a.drain is False for a in answers),
        "needed_drains": f"{sum(a.got_drain for a in answers if a.drain)}/{sum(bool(a.drain) for a in answers)}",
        "calibration_error": round(error, 3),
        "reliability": curve,
        "confusions": dict(confusion.most_common(12)),
    }


def with_rules(signatures: Signatures, rules: Rules) -> Signatures:
    """The same patterns, with other constants of the verdict."""
    changed = Signatures.__new__(Signatures)
    changed.__dict__.update(signatures.__dict__, rules=rules)
    return changed


def drains(signatures: Signatures, rules: Rules, folder: Path) -> Iterator[dict[str, object]]:
    """Wrong and needed drains by the least share of machines' causes; ``drain_above`` in rules/causes.toml follows."""
    for least in (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95):
        changed = replace(rules, judgement=replace(rules.judgement, drain_above=least))
        answers = labelled(folder, with_rules(signatures, changed))
        yield {
            "drain_above": least,
            "wrong": sum(a.got_drain for a in answers if a.drain is False),
            "of_no_drain": sum(a.drain is False for a in answers),
            "found": sum(a.got_drain for a in answers if a.drain),
            "of_needed": sum(bool(a.drain) for a in answers),
        }


def fit(signatures: Signatures, rules: Rules, folder: Path | None, each: int) -> list[dict[str, object]]:
    """Calibration error and log score by temperature, so that the constant in rules/causes.toml can be chosen."""
    from math import log

    table = []
    for temperature in (0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.4):
        changed = replace(rules, judgement=replace(rules.judgement, temperature=temperature, unknown_below=0.0))
        answers = generated(signatures, changed, each, 5)
        if folder is not None:
            answers += labelled(folder, with_rules(signatures, changed))
        score = [
            log(max(a.confidence if a.got == a.true else (1 - a.confidence) / 5, 1e-3))
            for a in answers
            if a.got != "unknown"
        ]
        _, error = reliability(answers)
        table.append(
            {
                "temperature": temperature,
                "log_score": round(sum(score) / len(score), 4),
                "calibration_error": round(error, 4),
            }
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labelled", type=Path, default=None)
    parser.add_argument("--each", type=int, default=4)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--drains", action="store_true", help="wrong and needed drains of --labelled by drain_above")
    parser.add_argument("--misses", action="store_true", help="list the generated cases that were judged otherwise")
    arguments = parser.parse_args()
    rules = load_rules()
    signatures = Signatures(rules, best_screen)
    if arguments.fit:
        for row in fit(signatures, rules, arguments.labelled, arguments.each):
            print(json.dumps(row))
        return
    if arguments.drains and arguments.labelled is not None:
        for row in drains(signatures, rules, arguments.labelled):
            print(json.dumps(row))
        return
    answers = generated(signatures, rules, arguments.each, 1)
    print(json.dumps(summary("two-faced", answers)))
    if arguments.misses:
        for a in answers:
            if (
                a.got != a.true
                or (a.scope is not None and a.scope != a.got_scope)
                or a.drain not in {None, a.got_drain}
            ):
                print(
                    f"{a.name} | true {a.true} {a.scope} drain {a.drain} | got {a.got} {a.got_scope}",
                    f"{a.got_drain} {a.confidence}",
                )
    if arguments.labelled is not None:
        print(json.dumps(summary("labelled", labelled(arguments.labelled, signatures))))


if __name__ == "__main__":
    main()
