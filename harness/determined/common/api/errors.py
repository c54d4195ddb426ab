"""The part of `determined.errors` that concerns the master's answers, under the name that user code imports."""

from __future__ import annotations

from determined.errors import (
    APIException,
    BadRequestException,
    BadResponseException,
    ConflictException,
    CorruptCertificateCacheException,
    CorruptTokenCacheException,
    DeleteFailedException,
    EmptyResultException,
    EnterpriseOnlyError,
    ForbiddenException,
    InvalidCredentialsException,
    InvalidRequestException,
    MasterNotFoundException,
    NotFoundException,
    ServerException,
    TooManyRequestsException,
    UnauthenticatedException,
)

__all__ = [
    "APIException",
    "BadRequestException",
    "BadResponseException",
    "ConflictException",
    "CorruptCertificateCacheException",
    "CorruptTokenCacheException",
    "DeleteFailedException",
    "EmptyResultException",
    "EnterpriseOnlyError",
    "ForbiddenException",
    "InvalidCredentialsException",
    "InvalidRequestException",
    "MasterNotFoundException",
    "NotFoundException",
    "ServerException",
    "TooManyRequestsException",
    "UnauthenticatedException",
]
