"""Client of the fusewire backend: typed answers and numpy arrays over gRPC or HTTP."""

from .answers import (
    Answer,
    Candidate,
    Classification,
    Entity,
    Generated,
    Logprob,
    ModelInfo,
    ModelStatistics,
    Ranked,
    Usage,
)
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

__version__ = "0.1.0"
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
    "Generated",
    "InvalidArgument",
    "Logprob",
    "ModelInfo",
    "ModelStatistics",
    "NotFound",
    "PermissionDenied",
    "Ranked",
    "ServerError",
    "Unavailable",
    "Usage",
    "__version__",
]
