"""Every error that this package raises, in one tree.

DeterminedException
├── InvalidHP                            raised by user code: this combination of hyperparameters makes no sense
├── InvalidConfigurationException        a configuration, environment variable or info file is wrong
│   ├── InvalidExperimentException       … of an experiment
│   └── StorageNotNamed                  the cluster itself does not touch this folder
├── InvalidDataTypeException             a value handed to us has the wrong type (also a TypeError)
├── InvalidContextException              a model directory can't be packed, or a packed one is unsafe
├── NotAvailableException                not in this release (also a NotImplementedError)
├── AllocationEnded                      the cluster has ended this allocation: stop, nothing more will be accepted
├── InternalException                    a bug of ours
├── DistributedError                     the workers of a job did not meet, or lost one, or went different ways
│   └── NotLaunchedError                 … were not started by that launcher (also a KeyError and a RuntimeError)
├── ArgumentsError                       arguments that don't go together (also a ValueError and an AssertionError)
├── NoTrialException                     an experiment ended without a trial (also a RuntimeError)
├── CheckpointException
│   ├── InvalidCheckpointException       a checkpoint is not what its description says
│   │   └── CheckpointCorruptError       … a file of it differs from its manifest
│   ├── CheckpointNotFound               no such checkpoint (also a FileNotFoundError)
│   ├── NoCheckpointException            no checkpoint to choose from (also a ValueError and an AssertionError)
│   ├── CheckpointStateException         the checkpoint is in a state that does not allow this
│   ├── CheckpointStorageFull            no space left in the checkpoint storage (also an OSError)
│   ├── CheckpointStorageError           the checkpoint storage can't be read or written (also an OSError)
│   ├── NoDirectStorageAccess            this machine can't reach the checkpoint storage itself
│   ├── ProxiedDownloadFailed            a download through the master failed
│   └── MultipleDownloadsFailed          each way of downloading failed
├── BadResponseException                 the master's answer is none that we understand
│   └── EmptyResultException             … there is nothing in it
├── CorruptTokenCacheException           the file of saved logins can't be read
├── CorruptCertificateCacheException     the file of saved certificates can't be read
└── BadRequestException                  the master refused, or could not be asked; the base, as in Determined
    └── APIException                     the master answered with an error
        ├── InvalidRequestException      400
        ├── UnauthenticatedException     401
        │   └── InvalidCredentialsException
        ├── ForbiddenException           403
        │   └── EnterpriseOnlyError
        ├── NotFoundException            404
        ├── ConflictException            409
        ├── TooManyRequestsException     429
        ├── DeleteFailedException        something could not be deleted
        ├── ServerException              5xx
        └── MasterNotFoundException      no answer at all (also a ConnectionError)
"""

from __future__ import annotations


class DeterminedException(Exception):
    """Base of every error of this package."""


class InvalidHP(DeterminedException):
    """Raise it inside `with core.init()` to tell the search that these hyperparameters can't be trained.

    The trial then ends at once without counting as a failure and is never tried again.
    """

    def __init__(self, msg: str = "the hyperparameters of this trial are not valid") -> None:
        super().__init__(msg)


class InvalidConfigurationException(DeterminedException):
    """A configuration, environment variable or info file is wrong."""


class InvalidExperimentException(InvalidConfigurationException):
    """An experiment's configuration is wrong."""


class StorageNotNamed(InvalidConfigurationException):
    """The cluster itself neither serves nor removes checkpoints in a folder that its operator did not name."""

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"the folder {folder} is none of those in which this cluster serves and removes checkpoints: its operator "
            "names them (UNDETERRED_STORAGE_ROOTS)"
        )
        self.folder = folder


class InvalidDataTypeException(DeterminedException, TypeError):
    """A value has the wrong type."""


class InvalidContextException(DeterminedException, ValueError):
    """A model directory can't be packed, or a packed one is refused."""


class NotAvailableException(DeterminedException, NotImplementedError):
    """Not available in this release."""


class AllocationEnded(DeterminedException):
    """The cluster has ended this allocation; it accepts nothing more from this process."""

    def __init__(self, allocation_id: str = "", detail: str = "") -> None:
        what = f"allocation {allocation_id}" if allocation_id else "this allocation"
        super().__init__(
            f"the cluster has ended {what} and refuses its reports"
            + (f" ({detail})" if detail else "")
            + "; exit now: the trial goes on elsewhere from its latest checkpoint, or is over"
        )


class InternalException(DeterminedException):
    """A bug of ours; please report it."""


class CheckpointException(DeterminedException):
    """Base of what can go wrong with a checkpoint."""


class InvalidCheckpointException(CheckpointException):
    """A checkpoint is not what its description says."""


class CheckpointCorruptError(InvalidCheckpointException):
    """A file of a checkpoint is missing in its storage, or is not what was stored."""


class CheckpointNotFound(CheckpointException, FileNotFoundError):
    """No such checkpoint."""


class NoCheckpointException(CheckpointException, ValueError, AssertionError):
    """There is no checkpoint to choose from. Determined's own SDK raises the one here and the other there."""


class CheckpointStateException(CheckpointException):
    """The checkpoint is in a state that does not allow this."""


class CheckpointStorageError(CheckpointException, OSError):
    """The checkpoint storage can't be read or written."""


class CheckpointStorageFull(CheckpointStorageError):
    """No space (or quota) is left in the checkpoint storage."""

    def __init__(self, path: str, free_bytes: int | None) -> None:
        left = "an unknown number of" if free_bytes is None else f"{free_bytes:,}"
        super().__init__(
            f"no space is left in the checkpoint storage: writing to {path} failed with {left} bytes free; "
            "delete checkpoints (`det checkpoint delete`), keep fewer of them (checkpoint_storage.save_* in the "
            "experiment's configuration), or enlarge the storage. The unfinished checkpoint was removed"
        )
        self.path = path
        self.free_bytes = free_bytes


class NoDirectStorageAccess(CheckpointException):
    """This machine can't reach the checkpoint storage itself."""


class ProxiedDownloadFailed(CheckpointException):
    """A download through the master failed."""


class MultipleDownloadsFailed(CheckpointException):
    """Each way of downloading failed."""

    def __init__(self, errors: list[Exception]) -> None:
        super().__init__("; ".join(str(e) for e in errors))
        self.errors = errors


class DistributedError(DeterminedException):
    """The workers of a job did not meet, or one of them was lost or went another way than the others."""


class NotLaunchedError(DistributedError, KeyError, RuntimeError):
    """A variable that the workers' launcher sets is not there."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


class ArgumentsError(DeterminedException, ValueError, AssertionError):
    """Arguments that do not go together: one is missing that belongs to another, or one is too many."""


class NoTrialException(DeterminedException, RuntimeError):
    """An experiment ended before it had a trial."""


class BadResponseException(DeterminedException):
    """The master's answer is none that we understand."""


class EmptyResultException(BadResponseException):
    """The master's answer has nothing in it."""


class CorruptTokenCacheException(DeterminedException):
    """The file of saved logins can't be read."""


class CorruptCertificateCacheException(DeterminedException):
    """The file of saved certificates can't be read."""


class BadRequestException(DeterminedException):
    """Base of what comes of asking the master, as in Determined: `except BadRequestException` catches all of it."""


class APIException(BadRequestException):
    """The master answered with an error.

    Attributes:
        status, status_code: The HTTP status; 0 if there was no answer.
        message, response_error: The master's own words.
        maybe_applied: Whether an attempt may have had its effect although no answer said so.
    """

    status = 0

    def __init__(self, message: str, *, status: int | None = None, code: str = "", where: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.code = code
        self.maybe_applied = False
        self.retry_after_s = 0.0
        if status is not None:
            self.status = status

    @property
    def status_code(self) -> int:
        """`status`, by the name that it has in Determined."""
        return self.status

    @property
    def response_error(self) -> str:
        """`message`, by the name that it has in Determined."""
        return self.message

    def __str__(self) -> str:
        return f"{self.message} ({self.where}: {self.status})" if self.where else self.message


class InvalidRequestException(APIException):
    """The master refuses the request as it is."""

    status = 400


class UnauthenticatedException(APIException):
    """Nobody is logged in, or the session has ended."""

    status = 401


class InvalidCredentialsException(UnauthenticatedException):
    """There is no such user, or the password is another."""


class DeleteFailedException(APIException):
    """Something could not be deleted."""


class ForbiddenException(APIException):
    """The user may not do this."""

    status = 403


class EnterpriseOnlyError(ForbiddenException):
    """Something that only Determined's enterprise edition has, such as clients of OAuth."""


class NotFoundException(APIException):
    """The thing does not exist."""

    status = 404


class ConflictException(APIException):
    """The thing already exists, or was changed by another client at the same time."""

    status = 409


class TooManyRequestsException(APIException):
    """The master asks to be called less often."""

    status = 429


class ServerException(APIException):
    """The master failed."""

    status = 500


class MasterNotFoundException(APIException, ConnectionError):
    """The master can't be reached."""


_BY_STATUS: dict[int, type[APIException]] = {
    400: InvalidRequestException,
    401: UnauthenticatedException,
    403: ForbiddenException,
    404: NotFoundException,
    409: ConflictException,
    429: TooManyRequestsException,
}


def api_exception(status: int, message: str, code: str = "", where: str = "") -> APIException:
    """The exception for an answer of the master, by its HTTP status."""
    default = ServerException if status >= 500 else APIException
    return _BY_STATUS.get(status, default)(message, status=status, code=code, where=where)
