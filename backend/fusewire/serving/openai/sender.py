"""The sender of a request, as identified by a gateway in front of the endpoint."""

from __future__ import annotations

from fastapi import Request

# The header of Kubernetes' Gateway API Inference Extension and of llm-d.
TENANT_HEADER = "x-gateway-inference-fairness-id"


def sender(request: Request) -> dict[str, str]:
    """Returns the model's request parameter `tenant`, where the request has one."""
    tenant = request.headers.get(TENANT_HEADER)
    return {} if tenant is None else {"tenant": tenant}
