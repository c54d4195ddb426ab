"""Checkpoints in Amazon S3 or a server that speaks its protocol, by way of boto3."""

from __future__ import annotations

import contextlib

from determined.common.outgoing import guarded_pools
from determined.common.storage._objects import ABSENT, BROKEN, EXPIRED, OTHER, SINGLE_REQUEST, ObjectStorage, sdk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from determined.common.outgoing import Outgoing
    from determined.common.storage._files import HashingReader

_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired")
_MAX_PARTS = 10_000
_ATTEMPTS = 8


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

    def fields(self) -> str:
        """As the contract says."""
        return "bucket, access_key, secret_key and endpoint_url"

    def connect(self) -> Any:
        """As the contract says."""
        boto3, config = sdk("boto3", "s3", "boto3"), sdk("botocore.config", "s3", "boto3")
        access_key, secret_key = self._credentials
        options: dict[str, Any] = {}
        if self._endpoint_url:
            # Other servers often don't know the checksums that Amazon's newer clients add to each request.
            options = {
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required",
            }
        if self._rules is not None:
            # neither a proxy nor a wait of minutes for a server that a user has named
            options |= {"proxies": {}, "connect_timeout": 10, "read_timeout": 30, "tcp_keepalive": False}
        # A session of its own: boto3's default one would keep credentials that have expired.
        client = boto3.session.Session().client(
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
            session = client._endpoint.http_session
            session._pool_classes_by_scheme = guarded_pools(self._rules, session._pool_classes_by_scheme)
            session._manager.pool_classes_by_scheme = session._pool_classes_by_scheme
        return client

    def sdk_errors(self) -> tuple[type[BaseException], ...]:
        """As the contract says."""
        botocore, boto3 = sdk("botocore.exceptions", "s3", "boto3"), sdk("boto3.exceptions", "s3", "boto3")
        return botocore.ClientError, botocore.BotoCoreError, boto3.Boto3Error

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

    def send_stream(self, client: Any, key: str, reader: HashingReader) -> None:
        """In parts, in several threads, which get their parts in the order of the file."""
        transfer = sdk("boto3.s3.transfer", "s3", "boto3")
        config = transfer.TransferConfig(
            multipart_threshold=SINGLE_REQUEST,
            multipart_chunksize=max(SINGLE_REQUEST // 2, -(-reader.size // _MAX_PARTS)),
            max_concurrency=8,
        )
        client.upload_fileobj(reader, self._bucket, key, Config=config)

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


def _code(error: BaseException) -> str:
    response: dict[str, Any] = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))
