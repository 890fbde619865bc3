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
    Expired,
    InvalidArgument,
    ModelDied,
    NoConnection,
    NotFound,
    OutOfMemory,
    Overloaded,
    PermissionDenied,
    QueueFull,
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
    "Expired",
    "Generated",
    "InvalidArgument",
    "Logprob",
    "ModelDied",
    "ModelInfo",
    "ModelStatistics",
    "NoConnection",
    "NotFound",
    "OutOfMemory",
    "Overloaded",
    "PermissionDenied",
    "QueueFull",
    "Ranked",
    "ServerError",
    "Unavailable",
    "Usage",
    "__version__",
]
