"""Checkpoints in Azure Blob Storage, by way of azure-storage-blob."""

from __future__ import annotations

from determined.common.outgoing import guarded_pools
from determined.common.storage._objects import (
    ABSENT,
    BROKEN,
    EXPIRED,
    OTHER,
    PIECE,
    SINGLE_REQUEST,
    NotCopied,
    ObjectStorage,
    sdk,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime
    from typing import Any

    from determined.common.outgoing import Outgoing
    from determined.common.storage._files import HashingReader
    from determined.common.storage._manifest import FileEntry
    from determined.common.storage._objects import Before

_MAX_BLOCKS = 50_000


class AzureStorage(ObjectStorage):
    """A container.

    Args:
        container: Its name.
        connection_string: Says account and key; excludes the two others.
        account_url: Of the account.
        credential: Key or SAS token that belongs to `account_url`; None for the machine's own identity, if the package
            azure-identity is there, else for a URL that has a SAS token itself.
        temp_dir: Where temporary folders are made; None for `$TMPDIR`.
        rules: Which addresses may be connected to; None: any.
    """

    # The service warns of names that end with "/"; the manifest knows the folders.
    keeps_folders = False
    # Else it would read in several threads, with leaps.
    reads_seekable = False

    def __init__(
        self,
        container: str,
        connection_string: str | None = None,
        account_url: str | None = None,
        credential: str | None = None,
        temp_dir: str | None = None,
        rules: Outgoing | None = None,
    ) -> None:
        token = (account_url or "").partition("?")[2]
        keys = [part.partition("=")[2] for part in (connection_string or "").split(";") if "Key=" in part]
        super().__init__(f"ms://{container}", "", (connection_string, credential, token, *keys), temp_dir)
        self._container = container
        self._connection_string = connection_string or None
        self._account_url = account_url or None
        self._credential = credential or None
        self._rules = rules

    def fields(self) -> str:
        """As the contract says."""
        return "container, connection_string, account_url and credential"

    def connect(self) -> Any:
        """As the contract says."""
        blob = sdk("azure.storage.blob", "azure", "azure-storage-blob")
        options: dict[str, Any] = {
            # By default the first pause is 18 seconds. These are 2 to 64, two minutes in all.
            "retry_policy": blob.ExponentialRetry(
                initial_backoff=0, increment_base=2, retry_total=6, random_jitter_range=1
            ),
            "max_single_put_size": SINGLE_REQUEST,
            "max_block_size": SINGLE_REQUEST // 2,
            "max_single_get_size": PIECE,
            "max_chunk_get_size": PIECE,
            "logging_enable": False,
        }
        if self._rules is not None:
            options |= _guarded(self._rules)
            options["retry_policy"] = blob.ExponentialRetry(initial_backoff=0, increment_base=2, retry_total=2)
        if self._connection_string:
            return blob.ContainerClient.from_connection_string(self._connection_string, self._container, **options)
        credential = self._credential or _own_identity(self._account_url or "")
        return blob.ContainerClient(self._account_url, self._container, credential=credential, **options)

    def sdk_errors(self) -> tuple[type[BaseException], ...]:
        """As the contract says."""
        return (sdk("azure.core.exceptions", "azure", "azure-storage-blob").AzureError,)

    def kind_of(self, error: BaseException) -> str:
        """As the contract says."""
        exceptions = sdk("azure.core.exceptions", "azure", "azure-storage-blob")
        if isinstance(error, (exceptions.IncompleteReadError, exceptions.ServiceResponseError)):
            return BROKEN
        if getattr(error, "error_code", "") == "BlobNotFound":
            return ABSENT
        return EXPIRED if getattr(error, "status_code", 0) == 401 else OTHER

    def send_bytes(self, client: Any, key: str, content: bytes) -> None:
        """As the contract says."""
        client.upload_blob(key, content, overwrite=True)

    def send_stream(self, client: Any, key: str, reader: HashingReader, before: Before | None) -> FileEntry:
        """In blocks, several at a time. A whole file may be copied; a block only with more rights than a key gives."""
        if self.is_copied(client, key, reader, before):
            return reader.entry()
        blob = client.get_blob_client(key)
        # The SDK takes the size of blocks from the client, which has it for all.
        blob._config.max_block_size = max(SINGLE_REQUEST // 2, -(-reader.size // _MAX_BLOCKS))
        blob.upload_blob(reader, length=reader.size, overwrite=True, max_concurrency=4)
        return reader.entry()

    def copy(self, client: Any, key: str, before: Before) -> None:
        """As the contract says."""
        import time

        blob, source = client.get_blob_client(key), client.get_blob_client(before.key).url
        answer = blob.start_copy_from_url(source, source_if_unmodified_since=before.written)
        status = answer["copy_status"]
        while status == "pending":  # within an account it is done at once, as a rule
            time.sleep(0.1)
            status = blob.get_blob_properties().copy.status
        if status != "success":
            raise NotCopied

    def modified(self, client: Any, key: str) -> datetime:
        """As the contract says."""
        return client.get_blob_client(key).get_blob_properties().last_modified

    def fetch_piece(self, client: Any, key: str, start: int, length: int) -> bytes:
        """As the contract says."""
        try:
            found = client.download_blob(key, offset=start, length=length)
            return found.read(length)  # a server may send more than it was asked for
        except sdk("azure.core.exceptions", "azure", "azure-storage-blob").HttpResponseError as e:
            if e.status_code == 416:
                return b""
            raise

    def list_objects(self, client: Any, prefix: str) -> dict[str, int]:
        """As the contract says."""
        return {blob.name: blob.size for blob in client.list_blobs(name_starts_with=prefix)}

    def delete_object(self, client: Any, key: str) -> None:
        """As the contract says."""
        client.delete_blob(key)


def _guarded(rules: Outgoing) -> dict[str, Any]:
    """Options of a client that connects where `rules` permit: no redirects, no proxy, no waiting for minutes."""
    requests, adapters = sdk("requests", "azure", "requests"), sdk("requests.adapters", "azure", "requests")
    transport = sdk("azure.core.pipeline.transport", "azure", "azure-core")
    session = requests.Session()
    session.trust_env = False
    for scheme in ("https://", "http://"):
        adapter = adapters.HTTPAdapter(pool_maxsize=8)
        manager = adapter.poolmanager
        manager.pool_classes_by_scheme = guarded_pools(rules, manager.pool_classes_by_scheme)
        session.mount(scheme, adapter)
    return {
        "transport": transport.RequestsTransport(session=session, session_owner=False, use_env_settings=False),
        "permit_redirects": False,
        "connection_timeout": 10,
        "read_timeout": 30,
    }


def _own_identity(account_url: str) -> Any:
    import importlib.util

    if "?" in account_url or importlib.util.find_spec("azure.identity") is None:
        return None
    return sdk("azure.identity", "azure", "azure-identity").DefaultAzureCredential()
