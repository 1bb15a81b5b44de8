from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from cryptography.fernet import Fernet

from signoff.service.tenant import Tenant
from tests.service.client import TEXT, Client


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Client]:
    client = Client(Tenant(tmp_path / "default", Fernet.generate_key()))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client.address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(client.app, log_config=None, lifespan="off", ws="none"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        try:
            yield client
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def hosted(ask: Client) -> Client:
    """With a pipeline that is stopped."""
    ask.tenant.create("alarms", TEXT, start=False)
    return ask
