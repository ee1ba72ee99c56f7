"""The few flat functions that are used."""

import types

import fake_state


def dcgmHostengineVersionInfo(handle):
    fake_state.call(handle)
    return types.SimpleNamespace(rawBuildInfoString="version:4.6.0;arch:x86_64;buildtype:Double")


def dcgmEntitiesGetLatestValues(handle, entities, fields, _flags):
    state = fake_state.call(handle)
    known = fake_state.gpus(state)
    return [
        types.SimpleNamespace(entityId=entity, fieldId=field, value=fake_state.value(state, known[entity], field))
        for _, entity in entities
        for field in fields
        if entity in known
    ]
