"""Where checkpoints go and how many are kept. Source: spec experiment-config.md §11, container-contract.md §2.

The fields that are not `type` or `save_*` reach the container as keyword arguments of its storage class, which
refuses any other: add none here that is not listed there.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from workflows.config.base import INT64_MAX, Section

STORAGE_UNION_MESSAGE = (
    "is not an object where object[\"type\"] is one of 'shared_fs', 'directory', 's3', 'gcs', or 'azure'"
)


class StorageBase(Section):
    """What every kind of storage has: how many checkpoints outlive the experiment."""

    # Bucket, path and so on usually come from the cluster's settings, so they are demanded only after merging.
    model_config = ConfigDict(json_schema_extra={"x-complete-only": True})

    save_experiment_best: int = Field(
        default=0, ge=0, le=INT64_MAX, description="Best checkpoints of the whole experiment that are kept."
    )
    save_trial_best: int = Field(
        default=1, ge=0, le=INT64_MAX, description="Best checkpoints of each trial that are kept."
    )
    save_trial_latest: int = Field(
        default=1, ge=0, le=INT64_MAX, description="Newest checkpoints of each trial that are kept."
    )


class SharedFSStorage(StorageBase):
    """A directory that every machine sees under the same path."""

    type: Literal["shared_fs"] = Field(description="A directory that every machine sees.")
    host_path: str = Field(min_length=1, description="The directory on the machines.")
    storage_path: str | None = Field(
        default=None, description="A directory below host_path, relative to it or absolute."
    )
    propagation: str = Field(default="rprivate", description="Propagation of the mount, as Docker spells it.")


class DirectoryStorage(StorageBase):
    """A path inside the container; mounting something there is up to the user."""

    type: Literal["directory"] = Field(description="A path inside the container that you mount yourself.")
    container_path: str = Field(min_length=1, description="The path inside the container.")


class S3Storage(StorageBase):
    """A bucket of Amazon S3 or of a server that speaks its protocol."""

    type: Literal["s3"] = Field(description="Amazon S3 or a server that speaks its protocol.")
    bucket: str = Field(min_length=1, description="Name of the bucket.")
    access_key: str | None = Field(default=None, description="Access key; without it the machine's own is used.")
    secret_key: str | None = Field(default=None, description="Secret key that belongs to access_key.")
    endpoint_url: str | None = Field(default=None, description="Address of a server that is not Amazon's.")
    prefix: str | None = Field(default=None, description="Path in front of every object.")


class GCSStorage(StorageBase):
    """A bucket of Google Cloud Storage."""

    type: Literal["gcs"] = Field(description="Google Cloud Storage.")
    bucket: str = Field(min_length=1, description="Name of the bucket.")
    prefix: str | None = Field(default=None, description="Path in front of every object.")


class AzureStorage(StorageBase):
    """A container of Azure Blob Storage."""

    type: Literal["azure"] = Field(description="Azure Blob Storage.")
    container: str = Field(min_length=1, description="Name of the container.")
    connection_string: str | None = Field(default=None, description="Connection string; excludes account_url.")
    account_url: str | None = Field(default=None, description="Address of the account; excludes connection_string.")
    credential: str | None = Field(default=None, description="Key that belongs to account_url.")


CheckpointStorage = Annotated[
    SharedFSStorage | DirectoryStorage | S3Storage | GCSStorage | AzureStorage, Field(discriminator="type")
]
