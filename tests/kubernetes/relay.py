"""A way to the cluster's API server that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import yaml


class Relay:
    """Passes connections on, until it is cut. `kubeconfig` leads through it."""

    def __init__(self, folder: Path) -> None:
        self._config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
        server = self._config["clusters"][0]["cluster"]["server"]
        host, _, port = server.removeprefix("https://").rpartition(":")
        self._target = host, int(port)
        self._is_cut = False
        self._open: set[asyncio.StreamWriter] = set()
        self.kubeconfig = str(folder / "relayed-kubeconfig")
        self.connections = 0

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Relay]:
        """Until it is left."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self._config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        await asyncio.to_thread(Path(self.kubeconfig).write_text, yaml.safe_dump(self._config))
        try:
            yield self
        finally:
            self.cut()
            server.close()

    def cut(self) -> None:
        """End all connections; new ones are taken, and closed at once."""
        self._is_cut = True
        for writer in list(self._open):
            writer.close()

    def mend(self) -> None:
        """Pass connections on again."""
        self._is_cut = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.close()
            return
        self.connections += 1
        to_reader, to_writer = await asyncio.open_connection(*self._target)
        self._open |= {writer, to_writer}
        try:
            await asyncio.gather(_pump(reader, to_writer), _pump(to_reader, writer))
        finally:
            self._open -= {writer, to_writer}


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
