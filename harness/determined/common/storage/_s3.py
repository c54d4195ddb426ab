"""Checkpoints in Amazon S3 or a server that speaks its protocol, by way of boto3's botocore."""

from __future__ import annotations

import contextlib
import functools
from operator import itemgetter

from determined.common.outgoing import guarded_pools
from determined.common.storage._manifest import FileEntry, entry_of
from determined.common.storage._objects import ABSENT, BROKEN, EXPIRED, OTHER, SINGLE_REQUEST, ObjectStorage, sdk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future
    from datetime import datetime
    from typing import Any, Callable

    from determined.common.outgoing import Outgoing
    from determined.common.storage._files import HashingReader
    from determined.common.storage._objects import Before

_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired")
_MAX_PARTS = 10_000
_PARTS_AT_ONCE = 8
#: Of one request. Larger objects are copied in parts.
_LARGEST_COPY = 5 << 30
#: Fields of a part's answer that its object is made with.
_CHECKSUMS = ("ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME", "ChecksumSHA1", "ChecksumSHA256")
_ATTEMPTS = 8


def _new_session() -> Any:
    return sdk("botocore.session", "s3", "boto3").get_session()


@functools.cache
def _service_models() -> Any:
    """The loader of botocore's models of services, for all sessions. Each loader parses them, which takes 80 ms."""
    return _new_session().get_component("data_loader")


class S3Storage(ObjectStorage):
    """A bucket.

    Args:
        bucket: Its name.
        prefix: In front of every object.
        access_key: None for the machine's own credentials, which are looked up as boto3 does.
        secret_key: Belongs to `access_key`.
        endpoint_url: Of a server that is not Amazon's; None for Amazon's.
        temp_dir: Where temporary folders are made; None for `$TMPDIR`.
        rules: Which addresses may be connected to; None: any.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        access_key: str | None = None,
        secret_key: str | None = None,
        endpoint_url: str | None = None,
        temp_dir: str | None = None,
        rules: Outgoing | None = None,
    ) -> None:
        super().__init__(f"s3://{bucket}/{prefix}".rstrip("/"), prefix, (access_key, secret_key), temp_dir)
        self._bucket = bucket
        self._credentials = (access_key or None, secret_key or None)
        self._endpoint_url = endpoint_url or None
        self._rules = rules

    copies_parts = True

    def fields(self) -> str:
        """As the contract says."""
        return "bucket, access_key, secret_key and endpoint_url"

    def connect(self) -> Any:
        """As the contract says."""
        config = sdk("botocore.config", "s3", "boto3")
        access_key, secret_key = self._credentials
        options: dict[str, Any] = {}
        if self._endpoint_url:
            # Other servers often don't know the checksums that Amazon's newer clients add to each request.
            options = {
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required",
            }
            if self._endpoint_url.startswith("https://"):
                # Without them botocore would sign the SHA-256 of each body, which takes longer than all else that is
                # done with it. What is sent within TLS nobody changes.
                options["s3"] = {"payload_signing_enabled": False}
        if self._rules is not None:
            # neither a proxy nor a wait of minutes for a server that a user has named
            options |= {"proxies": {}, "connect_timeout": 10, "read_timeout": 30, "tcp_keepalive": False}
        # A session of its own: one that is shared would keep credentials that have expired.
        session = _new_session()
        session.register_component("data_loader", _service_models())
        client = session.create_client(
            "s3",
            aws_access_key_id=access_key,
            aws_secret_access_key=secret_key,
            endpoint_url=self._endpoint_url,
            config=config.Config(
                retries={"mode": "standard", "total_max_attempts": 3 if self._rules else _ATTEMPTS},
                max_pool_connections=50,
                user_agent_extra="undeterred",
                **options,
            ),
        )
        if self._rules is not None:
            http = client._endpoint.http_session
            http._pool_classes_by_scheme = guarded_pools(self._rules, http._pool_classes_by_scheme)
            http._manager.pool_classes_by_scheme = http._pool_classes_by_scheme
        return client

    def sdk_errors(self) -> tuple[type[BaseException], ...]:
        """As the contract says."""
        exceptions = sdk("botocore.exceptions", "s3", "boto3")
        return exceptions.ClientError, exceptions.BotoCoreError

    def kind_of(self, error: BaseException) -> str:
        """As the contract says."""
        exceptions = sdk("botocore.exceptions", "s3", "boto3")
        if isinstance(error, (exceptions.IncompleteReadError, exceptions.ResponseStreamingError)):
            return BROKEN
        code = _code(error)
        if code in ("NoSuchKey", "404"):
            return ABSENT
        return EXPIRED if code in _EXPIRED else OTHER

    def send_bytes(self, client: Any, key: str, content: bytes) -> None:
        """As the contract says."""
        client.put_object(Bucket=self._bucket, Key=key, Body=content)

    def send_stream(self, client: Any, key: str, reader: HashingReader, before: Before | None) -> FileEntry:
        """In parts, several at once. All are of one size: some servers take no others."""
        size = max(SINGLE_REQUEST // 2, -(-reader.size // _MAX_PARTS))
        there = before.entry.parts if before is not None and before.entry.part_size == size else ()
        upload = _Upload(self, client, self._bucket, key)
        hashes: list[str] = []
        with upload:
            same = 0  # parts at the beginning that are unchanged: a whole file of these takes one request
            for number, piece in enumerate(iter(lambda: reader.read(size), b"")):
                hashes.append(entry_of(piece).xxh3)
                is_same = number < len(there) and there[number] == hashes[number]
                if is_same and same == number:
                    same += 1
                    continue
                if before is not None and number == same:
                    upload.copy(before, range(same), size)
                if before is not None and is_same:
                    upload.copy(before, [number], size)
                else:
                    upload.send(number, piece)
            entry = reader.entry()
            if before is not None and entry == before.entry and same == len(hashes) and entry.size <= _LARGEST_COPY:
                self.copied(self.copy, client, key, before)
            else:
                if before is not None and same == len(hashes):
                    upload.copy(before, range(same), size)
                upload.complete()
        return FileEntry(entry.size, entry.xxh3, size, hashes)

    def copy(self, client: Any, key: str, before: Before) -> None:
        """As the contract says."""
        source = {"Bucket": self._bucket, "Key": before.key}
        client.copy_object(Bucket=self._bucket, Key=key, CopySource=source, CopySourceIfUnmodifiedSince=before.written)

    def modified(self, client: Any, key: str) -> datetime:
        """As the contract says."""
        return client.head_object(Bucket=self._bucket, Key=key)["LastModified"]

    def fetch_piece(self, client: Any, key: str, start: int, length: int) -> bytes:
        """As the contract says."""
        try:
            answer = client.get_object(Bucket=self._bucket, Key=key, Range=f"bytes={start}-{start + length - 1}")
        except client.exceptions.ClientError as e:
            if _code(e) in ("InvalidRange", "416"):
                return b""
            raise
        # Not `with answer["Body"]`, which would give the raw stream, with errors of its own.
        with contextlib.closing(answer["Body"]) as body:
            found = body.read(length)  # a server may send more than it was asked for
            if len(found) < length:
                body.read(1)  # raises, if less has come than was promised
            return found

    def list_objects(self, client: Any, prefix: str) -> dict[str, int]:
        """As the contract says."""
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
        return {item["Key"]: item["Size"] for page in pages for item in page.get("Contents", ())}

    def delete_object(self, client: Any, key: str) -> None:
        """As the contract says."""
        client.delete_object(Bucket=self._bucket, Key=key)


class _Upload:
    """An object that comes together from parts. Left without `complete`, nothing of it stays.

    Args:
        storage: Whose errors mean what.
        client: Of botocore.
        bucket: Its name.
        key: The object.
    """

    def __init__(self, storage: ObjectStorage, client: Any, bucket: str, key: str) -> None:
        import threading
        from concurrent.futures import ThreadPoolExecutor

        self._storage = storage
        self._client = client
        self._place = {"Bucket": bucket, "Key": key}
        self._id = ""
        self._is_complete = False
        self._failed: BaseException | None = None
        self._futures: list[Future[dict[str, Any]]] = []
        # As many as are sent at once, and as many that wait: no more of the file is in memory.
        self._room = threading.Semaphore(2 * _PARTS_AT_ONCE)
        self._pool = ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="storage-part")

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        if self._id and not self._is_complete:
            with contextlib.suppress(*self._storage.sdk_errors()):  # what made it fail is raised already
                self._client.abort_multipart_upload(**self._place, UploadId=self._id)

    def send(self, number: int, piece: bytes) -> None:
        """Send a part, of which the first has number 0. Raises what an earlier one failed with."""
        self._add(lambda part: self._client.upload_part(**part, Body=piece), number)

    def copy(self, before: Before, numbers: Iterable[int], size: int) -> None:
        """Have parts copied, of `size` bytes each but for the last of the object. Raises as `send`."""
        for number in numbers:
            self._add(lambda part, number=number: self._copy(before, part, number * size, size), number)

    def complete(self) -> None:
        """Make the object of its parts."""
        made = [future.result() for future in self._futures]
        parts = [
            {"PartNumber": number + 1, "ETag": part["ETag"]}
            | {name: value for name, value in part.items() if name in _CHECKSUMS}
            for number, part in sorted(((part["number"], part) for part in made), key=itemgetter(0))
        ]
        self._client.complete_multipart_upload(**self._place, UploadId=self._id, MultipartUpload={"Parts": parts})
        self._is_complete = True

    def _copy(self, before: Before, part: dict[str, Any], start: int, size: int) -> dict[str, Any]:
        end = min(start + size, before.entry.size) - 1
        answer = self._storage.copied(
            lambda: self._client.upload_part_copy(
                **part,
                CopySource={"Bucket": self._place["Bucket"], "Key": before.key},
                CopySourceRange=f"bytes={start}-{end}",
                CopySourceIfUnmodifiedSince=before.written,
            )
        )
        return answer["CopyPartResult"]

    def _add(self, action: Callable[[dict[str, Any]], dict[str, Any]], number: int) -> None:
        if not self._id:
            self._id = self._client.create_multipart_upload(**self._place)["UploadId"]
        self._room.acquire()
        if self._failed is not None:
            raise self._failed  # the rest of the file need not be read

        def run() -> dict[str, Any]:
            try:
                part = {**self._place, "UploadId": self._id, "PartNumber": number + 1}
                return {**action(part), "number": number}
            except BaseException as e:
                self._failed = e
                raise
            finally:
                self._room.release()

        self._futures.append(self._pool.submit(run))


def _code(error: BaseException) -> str:
    response: dict[str, Any] = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))
