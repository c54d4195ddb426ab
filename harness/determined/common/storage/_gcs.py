"""Checkpoints in Google Cloud Storage, by way of google-cloud-storage."""

from __future__ import annotations

from determined.common.storage._objects import ABSENT, BROKEN, EXPIRED, OTHER, SINGLE_REQUEST, ObjectStorage, sdk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime
    from typing import Any

    from determined.common.storage._files import HashingReader
    from determined.common.storage._manifest import FileEntry
    from determined.common.storage._objects import Before

_CONNECTIONS = 32


class GCSStorage(ObjectStorage):
    """A bucket. Credentials are those of the machine: `GOOGLE_APPLICATION_CREDENTIALS`, or its service account.

    Args:
        bucket: Its name.
        prefix: In front of every object.
        temp_dir: Where temporary folders are made; None for `$TMPDIR`.
    """

    def __init__(self, bucket: str, prefix: str = "", temp_dir: str | None = None) -> None:
        super().__init__(f"gs://{bucket}/{prefix}".rstrip("/"), prefix, (), temp_dir)
        self._bucket = bucket

    def fields(self) -> str:
        """As the contract says."""
        return "bucket"

    def connect(self) -> Any:
        """As the contract says."""
        storage, adapters = _sdk("google.cloud.storage"), _sdk("requests.adapters")
        client = storage.Client()
        # Its sessions keep ten connections, and complain in the log of each more.
        session: Any = client._http
        for scheme in ("https://", "http://"):
            session.mount(scheme, adapters.HTTPAdapter(pool_connections=4, pool_maxsize=_CONNECTIONS))
        return client

    def sdk_errors(self) -> tuple[type[BaseException], ...]:
        """As the contract says."""
        requests = _sdk("requests.exceptions")
        return (
            _sdk("google.api_core.exceptions").GoogleAPIError,
            _sdk("google.auth.exceptions").GoogleAuthError,
            _sdk("google.cloud.storage.exceptions").InvalidResponse,
            _sdk("google.cloud.storage.exceptions").DataCorruption,
            requests.RequestException,
            _sdk("urllib3.exceptions").HTTPError,
        )

    def kind_of(self, error: BaseException) -> str:
        """As the contract says."""
        corrupt = _sdk("google.cloud.storage.exceptions").DataCorruption
        broken = (_sdk("requests.exceptions").ChunkedEncodingError, _sdk("urllib3.exceptions").HTTPError, corrupt)
        if isinstance(error, broken):
            return BROKEN
        auth = _sdk("google.auth.exceptions")
        # It renews tokens by itself as long as it can. What it can't is read anew from where they came from.
        if isinstance(error, (auth.RefreshError, auth.InvalidOperation)):
            return EXPIRED
        return {404: ABSENT, 401: EXPIRED}.get(_status(error), OTHER)

    def send_bytes(self, client: Any, key: str, content: bytes) -> None:
        """As the contract says."""
        self._blob(client, key).upload_from_string(
            content, content_type="application/octet-stream", retry=_retry(), checksum="crc32c"
        )

    def send_stream(self, client: Any, key: str, reader: HashingReader, before: Before | None) -> FileEntry:
        """In a resumable upload; one object's parts follow each other. A whole file may be copied, a part can't."""
        if self.is_copied(client, key, reader, before):
            return reader.entry()
        blob = self._blob(client, key)
        blob.chunk_size = SINGLE_REQUEST
        blob.upload_from_file(reader, size=reader.size, content_type="application/octet-stream", retry=_retry())
        return reader.entry()

    def copy(self, client: Any, key: str, before: Before) -> None:
        """As the contract says."""
        source, target, token = self._blob(client, before.key), self._blob(client, key), None
        while True:
            token, _, _ = target.rewrite(source, token=token, retry=_retry())
            if token is None:
                return

    def modified(self, client: Any, key: str) -> datetime:
        """As the contract says."""
        blob = self._blob(client, key)
        blob.reload(retry=_retry())
        return blob.updated

    def fetch_piece(self, client: Any, key: str, start: int, length: int) -> bytes:
        """As the contract says."""
        try:
            return self._blob(client, key).download_as_bytes(
                start=start, end=start + length - 1, raw_download=True, retry=_retry(), checksum=None
            )
        except _sdk("google.api_core.exceptions").RequestRangeNotSatisfiable:
            return b""

    def list_objects(self, client: Any, prefix: str) -> dict[str, int]:
        """As the contract says."""
        found = client.list_blobs(self._bucket, prefix=prefix, fields="items(name,size),nextPageToken", retry=_retry())
        return {blob.name: blob.size for blob in found}

    def delete_object(self, client: Any, key: str) -> None:
        """As the contract says."""
        self._blob(client, key).delete(retry=_retry())

    def _blob(self, client: Any, key: str) -> Any:
        return client.bucket(self._bucket).blob(key)


def _sdk(module: str) -> Any:
    return sdk(module, "gcs", "google-cloud-storage")


def _retry() -> Any:
    # Not the conditional one, which is the default for writes: ours may be repeated, an object is written by one.
    return _sdk("google.cloud.storage.retry").DEFAULT_RETRY


def _status(error: BaseException) -> int:
    """The HTTP status; 0 if there is none."""
    status: Any = getattr(error, "code", None) or getattr(getattr(error, "response", None), "status_code", None)
    return int(status) if isinstance(status, int) else 0
