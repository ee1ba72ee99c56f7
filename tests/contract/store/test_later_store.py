"""A store that a later release wrote: this one leaves it as it is, and says what to do."""

from __future__ import annotations

import pytest
from in_memory.direct_store import DirectStore
from sqlalchemy import text

from sentinel.errors import UserError


def test_store_of_a_later_release_is_told_and_left(url: str) -> None:
    first = DirectStore(url)
    with first.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    first.close()
    with pytest.raises(UserError, match="of a later release: step 9999") as caught:
        DirectStore(url)
    assert "bring back the copy" in caught.value.fix
    read = DirectStore(url, read_only=True)
    with read.engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == "9999"
    read.close()
