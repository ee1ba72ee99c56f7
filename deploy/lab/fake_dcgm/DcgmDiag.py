"""Diagnostics through the bindings, in the index-based form of 4.x."""

import os
import time
import types

import dcgm_structs
import diag_output
import fake_state

if os.environ.get("SENTINEL_FAKE_DCGM_IMPORT") == "broken":
    import logger  # noqa: F401 - some releases import a module that is not shipped

_STATUS = {"Pass": 0, "Skip": 1, "Warn": 2, "Fail": 3}


class DcgmDiag:
    def __init__(self, gpuIds=None, testNamesStr="", paramsStr="", verbose=False, timeout=0, **_):
        if testNamesStr not in ("1", "2", "3", "4"):
            raise ValueError(f"unknown test names {testNamesStr!r}")
        self._ids, self._level, self._timeout = gpuIds, int(testNamesStr), timeout

    def Execute(self, handle):
        state = fake_state.call(handle)
        script = state.get("diag", {})
        if script.get("busy"):
            raise dcgm_structs.error_of(int(script.get("busy_code", -34)))
        seconds = float(script.get("sleep_s", 0))
        if self._timeout and seconds > self._timeout:
            time.sleep(self._timeout)
            raise dcgm_structs.error_of(-11)  # the diagnostic goes on
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            if fake_state.stopped_at() > began:
                raise dcgm_structs.error_of(-66)
            time.sleep(0.02)
        known = fake_state.gpus(state)
        ids = self._ids or sorted(number for number, gpu in known.items() if gpu.get("status", "ok") == "ok")
        return _response(diag_output.document(state, self._level, ids))


def _response(document):
    tests, results, errors = [], [], []
    for category in document["DCGM Diagnostic"]["test_categories"]:
        for test in category["tests"]:
            test_id = len(tests)
            made = types.SimpleNamespace(
                name=test["name"], pluginName="", result=_STATUS[test["test_summary"]["status"]]
            )
            made.resultIndices, made.errorIndices = [], []
            for result in test["results"]:
                entity = types.SimpleNamespace(entityGroupId=1, entityId=result["entity_id"])
                made.resultIndices.append(len(results))
                results.append(types.SimpleNamespace(entity=entity, result=_STATUS[result["status"]], testId=test_id))
                for warning in result.get("warnings", []):
                    made.errorIndices.append(len(errors))
                    errors.append(
                        types.SimpleNamespace(
                            entity=entity,
                            code=warning["error_id"],
                            category=warning["error_category"],
                            severity=warning["error_severity"],
                            msg=warning["warning"],
                            testId=test_id,
                        )
                    )
            made.numResults, made.numErrors = len(made.resultIndices), len(made.errorIndices)
            tests.append(made)
    return types.SimpleNamespace(
        tests=tests,
        numTests=len(tests),
        results=results,
        errors=errors,
        numErrors=len(errors),
        categories=[],
        entities=[],
    )
