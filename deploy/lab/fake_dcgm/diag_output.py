"""What a diagnostic says, from the state file: tests of a level, results by GPU, warnings. For ``dcgmi``."""

TESTS = {
    1: [("Deployment", "software")],
    2: [("Hardware", "memory"), ("Integration", "pcie")],
    3: [
        ("Hardware", "diagnostic"),
        ("Hardware", "nvbandwidth"),
        ("Stress", "memory_bandwidth"),
        ("Stress", "targeted_stress"),
        ("Stress", "targeted_power"),
    ],
    4: [("Stress", "memtest"), ("Hardware", "pulse_test")],
}


def tests_of(level, absent):
    """(category, name) of every test up to a level; a missing plugin is left out silently."""
    return [pair for number in range(1, level + 1) for pair in TESTS[number] if pair[1] not in absent]


def document(state, level, ids):
    """The JSON of DCGM 4 for one run."""
    script = state.get("diag", {})
    errors = [error for error in script.get("errors", []) if error.get("gpu") is None or error["gpu"] in ids]
    categories = {}
    for category, name in tests_of(level, script.get("absent", [])):
        mine = [error for error in errors if error["test"] == name]
        categories.setdefault(category, []).append(_test(name, ids, mine, script.get("result", {}).get(name)))
    return {
        "DCGM Diagnostic": {
            "test_categories": [{"category": name, "tests": tests} for name, tests in categories.items()]
        },
        "entity_groups": [
            {
                "entity_group": "GPU",
                "entity_group_id": 1,
                "entities": [{"entity_id": gpu, "device_id": "2330"} for gpu in ids],
            }
        ],
        "metadata": {"version": "4.6.0", "Driver Version Detected": "570.172.08"},
    }


def _test(name, ids, errors, forced):
    blamed = {error["gpu"] for error in errors if error.get("gpu") is not None}
    results = []
    for gpu in ids:
        # In "software", trouble on any GPU marks every GPU.
        bad = bool(errors) if name == "software" else gpu in blamed
        result = {
            "entity_group": "GPU",
            "entity_group_id": 1,
            "entity_id": gpu,
            "status": forced or ("Fail" if bad else "Pass"),
        }
        warnings = [_warning(error) for error in errors if error.get("gpu") == gpu]
        if warnings:
            result["warnings"] = warnings
        results.append(result)
    summary = {"status": forced or ("Fail" if errors else "Pass")}
    if errors:
        summary["warnings"] = [_warning(error) for error in errors]  # the summary repeats them
    return {"name": name, "results": results, "test_summary": summary}


def _warning(error):
    return {
        "error_category": error.get("category", 10),
        "error_id": error["code"],
        "error_severity": error.get("severity", 2),
        "warning": error.get("text", f"error {error['code']}"),
    }


def status_of(state, level, ids):
    """Exit status: 205 when an error of a test that ran isolates a GPU, 226 for any other, 0 for none."""
    script = state.get("diag", {})
    ran = {name for _, name in tests_of(level, script.get("absent", []))}
    found = [error for error in script.get("errors", []) if error["test"] in ran]
    errors = [error for error in found if error.get("gpu") is None or error["gpu"] in ids]
    if any(error.get("severity", 2) == 2 for error in errors):
        return 205
    return 226 if errors else 0


def runtime_error(code, text):
    message = f"Error: Unable to complete diagnostic for entities *,cpu:*. Return: ({code}) : {text}\n"
    return {"DCGM Diagnostic": {"runtime_error": message, "version": "4.6.0"}}
