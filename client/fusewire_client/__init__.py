"""Client of the fusewire backend: typed answers and numpy arrays over gRPC or HTTP."""

from .answers import Answer, Candidate, Classification, Entity, ModelInfo, ModelStatistics
from .async_client import AsyncClient
from .client import Client
from .errors import (
    Cancelled,
    ClientError,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ServerError,
    Unavailable,
)

__all__ = [
    "Answer",
    "AsyncClient",
    "Cancelled",
    "Candidate",
    "Classification",
    "Client",
    "ClientError",
    "DeadlineExceeded",
    "Entity",
    "InvalidArgument",
    "ModelInfo",
    "ModelStatistics",
    "NotFound",
    "PermissionDenied",
    "ServerError",
    "Unavailable",
]
