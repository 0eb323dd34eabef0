from collections.abc import Iterator

import pytest
from node_peer import Peer


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()
