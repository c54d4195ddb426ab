"""Where checkpoints live: in folders that this machine can reach, in S3, GCS or Azure, behind one contract."""

from __future__ import annotations

import os
import re

from determined import errors
from determined.common.outgoing import Refused, site
from determined.common.storage._manifest import FileEntry
from determined.common.storage._posix import PosixStorage
from determined.common.storage._storage import Storage, checked_id
from determined.common.storage._tree import is_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from determined.common.outgoing import Outgoing

__all__ = [
    "CONTAINER_SHARED_FS",
    "FileEntry",
    "PosixStorage",
    "Storage",
    "build",
    "build_of_user",
    "checked_id",
    "folder_on_host",
    "root_of",
]

CONTAINER_SHARED_FS = "/determined_shared_fs"
_KINDS = ("shared_fs", "directory", "s3", "gcs", "azure")
_LATER = ("hdfs",)
_MASK = "********"
#: As a URL begins, though without its slashes: `s3:/bucket`, `C:\\data`.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SCHEMES = {"s3": "s3", "gs": "gcs", "ms": "azure", "hdfs": "hdfs"}


def root_of(config: Mapping[str, Any]) -> str:
    """The folder in which the `checkpoint_storage` section of an experiment's configuration puts checkpoints.

    For `shared_fs`: `$DET_SHARED_FS_PATH` if set (launchers do), else `/determined_shared_fs` if something is mounted
    there (a container), else `host_path` itself; then `storage_path`.

    Raises:
        NotAvailableException: The type is not available in this release.
        InvalidConfigurationException: The section is wrong, or its type is none of folders.
    """
    if config.get("type") == "shared_fs":
        host_path = _absolute(config, "host_path")
        mounted = os.environ.get("DET_SHARED_FS_PATH")
        if not mounted:
            mounted = CONTAINER_SHARED_FS if os.path.ismount(CONTAINER_SHARED_FS) else host_path
        return _shared_fs(config, mounted)
    return folder_on_host(config)


def folder_on_host(config: Mapping[str, Any]) -> str:
    """As `root_of`, on a machine of the cluster, outside of containers: there `shared_fs` is at `host_path`.

    Raises:
        NotAvailableException, InvalidConfigurationException: As `root_of`.
    """
    kind = config.get("type")
    if kind == "directory":
        return _absolute(config, "container_path")
    if kind == "shared_fs":
        return _shared_fs(config, _absolute(config, "host_path"))
    if kind in _LATER:
        raise errors.NotAvailableException(
            f"storage type {kind!r} is not available in this release; use 'shared_fs' or 'directory' "
            "(checkpoint_storage.type in the experiment's configuration)"
        )
    known = "one of 'shared_fs', 'directory'" if kind in _KINDS else f"one of {', '.join(map(repr, _KINDS))}"
    raise errors.InvalidConfigurationException(f"checkpoint_storage.type is {kind!r}, but must be {known}")


def build(config: Mapping[str, Any] | str, rules: Outgoing | None = None) -> Storage:
    """The storage that a `checkpoint_storage` section describes, or a path, or a URL.

    URLs: `s3://bucket/prefix`, `gs://bucket/prefix`, `ms://account.blob.core.windows.net/container`, and
    `ms://container` of the account that `$AZURE_STORAGE_CONNECTION_STRING` names.

    Nothing is connected to yet; `probe` finds out whether it works.

    Args:
        config: The section, path or URL.
        rules: Which addresses may be connected to; None: any.

    Raises:
        NotAvailableException: The type is not available in this release, or its SDK is not installed.
        InvalidConfigurationException: The section is wrong.
    """
    if isinstance(config, str):
        scheme, found, rest = config.partition("://")
        if not config.strip() or (not found and _SCHEME.match(config)):
            raise errors.InvalidConfigurationException(
                f"checkpoint_storage is {config!r}, but must be the path of a folder, or a URL such as s3://bucket/prefix"
            )
        if not found or scheme == "file":
            return PosixStorage(os.path.abspath(rest if found else os.path.expanduser(config)))
        config = _of_url(scheme, rest)
    kind = config.get("type")
    if kind == "s3":
        from determined.common.storage._s3 import S3Storage

        _need("boto3", "s3", "boto3")
        names = ("access_key", "secret_key", "endpoint_url", "temp_dir")
        return S3Storage(_text(config, "bucket"), _prefix(config), rules=rules, **_optional(config, names))
    if kind == "gcs":
        from determined.common.storage._gcs import GCSStorage

        _need("google.cloud.storage", "gcs", "google-cloud-storage")
        return GCSStorage(_text(config, "bucket"), _prefix(config), **_optional(config, ("temp_dir",)))
    if kind == "azure":
        from determined.common.storage._azure import AzureStorage

        _need("azure.storage.blob", "azure", "azure-storage-blob")
        names = ("connection_string", "account_url", "credential", "temp_dir")
        given = _optional(config, names)
        if bool(given["connection_string"]) == bool(given["account_url"]):
            raise errors.InvalidConfigurationException(
                "checkpoint_storage: exactly one of connection_string and account_url must be set when the type is "
                "'azure'"
            )
        return AzureStorage(_text(config, "container"), rules=rules, **given)
    return PosixStorage(root_of(config))


def build_of_user(config: Mapping[str, Any]) -> Storage:
    """As `build`, for a process of the cluster that opens what a user's configuration names (`common.outgoing`).

    Raises:
        NotAvailableException: As `build`.
        InvalidConfigurationException: As `build`; or its address is one that the operator does not allow, or it has no
            credentials of its own and the operator has not named its bucket.
    """
    rules, kind = site(), config.get("type")
    if kind not in ("s3", "gcs", "azure"):
        return build(config)
    if _names_own(config, rules):
        return build(config)
    text = str(config.get("connection_string") or "")
    own = {
        "s3": bool(config.get("access_key") and config.get("secret_key")),
        "gcs": False,
        "azure": bool(config.get("credential") or "?" in str(config.get("account_url") or "") or text),
    }
    if not own[str(kind)]:
        raise errors.InvalidConfigurationException(
            f"checkpoint_storage: this {kind} storage names no credentials, and the cluster's own are not for it: name"
            " them in the configuration, or have the operator add the bucket to UNDETERRED_OWN_BUCKETS"
        )
    urls = [config.get("endpoint_url"), config.get("account_url")]
    urls += [value for key, _, value in (part.partition("=") for part in text.split(";")) if key.endswith("Endpoint")]
    try:
        for url in urls:
            if url:
                rules.check_url(str(url))
    except Refused as e:
        raise errors.InvalidConfigurationException(
            f"checkpoint_storage: this cluster does not connect to that address: {e}"
            " (UNDETERRED_ALLOWED_NETWORKS allows networks)"
        ) from None
    return build(config, rules)


def _names_own(config: Mapping[str, Any], rules: Outgoing) -> bool:
    """Whether this is a storage of the operator's, at the provider itself or where the operator's settings say."""
    steered = ("access_key", "secret_key", "endpoint_url", "connection_string", "credential")
    if any(config.get(name) for name in steered):
        return False
    if config.get("type") == "azure":  # the identity's token would go to whatever account_url says
        scheme, found, host = str(config.get("account_url") or "").rstrip("/").partition("://")
        name = f"ms://{host}/{config.get('container')}" if scheme == "https" and found else ""
    else:
        name = f"{'s3' if config.get('type') == 's3' else 'gs'}://{config.get('bucket')}"
    return name in rules.own_buckets


def _of_url(scheme: str, rest: str) -> Mapping[str, Any]:
    kind = _SCHEMES.get(scheme, scheme)
    first, _, below = rest.strip("/").partition("/")
    if kind != "azure":
        return {"type": kind, "bucket": first, "prefix": below}
    if "." in first:
        return {"type": kind, "account_url": f"https://{first}", "container": below}
    if below:
        raise errors.InvalidConfigurationException(
            f"the checkpoint storage ms://{rest} has a path, but must be ms://container or "
            "ms://account.blob.core.windows.net/container"
        )
    return {
        "type": kind,
        "container": first,
        "connection_string": os.environ.get("AZURE_STORAGE_CONNECTION_STRING"),
    }


def _shared_fs(config: Mapping[str, Any], mounted: str) -> str:
    host_path, below = str(config["host_path"]), str(config.get("storage_path") or "")
    if os.path.isabs(below):
        below = os.path.relpath(below, host_path)
    root = os.path.normpath(os.path.join(mounted, below))
    if not is_below(root, os.path.normpath(mounted)):
        raise errors.InvalidConfigurationException(
            f"checkpoint_storage.storage_path is {config.get('storage_path')!r}, but must be a relative directory "
            f"or a subdirectory of host_path ({host_path})"
        )
    return root


def _absolute(config: Mapping[str, Any], name: str) -> str:
    value = config.get(name)
    if not isinstance(value, str) or not os.path.isabs(value):
        raise errors.InvalidConfigurationException(
            f"checkpoint_storage.{name} is {value!r}, but must be an absolute path when the type is {config['type']!r}"
        )
    return value


def _text(config: Mapping[str, Any], name: str) -> str:
    value = config.get(name)
    if not isinstance(value, str) or not value or "/" in value:
        raise errors.InvalidConfigurationException(
            f"checkpoint_storage.{name} is {value!r}, but must be a name without '/' when the type is "
            f"{config['type']!r}"
        )
    return value


def _optional(config: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, str | None]:
    for name in names:
        # The value may be a secret: only its type is told.
        if not isinstance(config.get(name), (str, type(None))):
            raise errors.InvalidConfigurationException(
                f"checkpoint_storage.{name} is of type {type(config[name]).__name__}, but must be a string"
            )
    # The master shows its users masks: then this machine's own credentials are the ones to try.
    return {name: None if config.get(name) == _MASK else config.get(name) for name in names}


def _prefix(config: Mapping[str, Any]) -> str:
    value = config.get("prefix") or ""
    parts = str(value).split("/")
    if not isinstance(value, str) or ".." in parts:
        raise errors.InvalidConfigurationException(
            f"checkpoint_storage.prefix is {value!r}, but must be a path without '..'"
        )
    return "/".join(part for part in parts if part not in ("", "."))


def _need(module: str, kind: str, package: str) -> None:
    """Refuse what could not work later. The SDK is looked for, which is cheap, not imported."""
    import importlib.util

    from determined.common.storage._objects import not_installed

    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise not_installed(kind, package)
