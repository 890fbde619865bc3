"""/tokenize and /detokenize, as in vLLM."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import FailFast, Field

from fusewire.errors import InvalidInput
from fusewire.serving.openai.bodies import Body, check_text
from fusewire.serving.openai.errors import shown
from fusewire.serving.openai.generation_bodies import Messages
from fusewire.serving.openai.served import Generator, Served


class TokenizerBody(Body):
    """The common fields of both."""

    model: str | None = Field(  # type: ignore[assignment]
        default=None, description="Default: the server's only model."
    )

    def check(self) -> None:
        """Raises InvalidInput for fields that are not supported."""
        for name, value in self.given().items():
            raise InvalidInput(name, shown(value), "a supported field", "remove it")


class TokenizeRequest(TokenizerBody):
    """The body of /tokenize: a text, or messages for the model's chat template."""

    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = Field(
        default=None, description="Default: true for a prompt, false for messages."
    )
    return_token_strs: bool = Field(default=False, description="Return the tokens as strings too.")
    add_generation_prompt: bool = True
    continue_final_message: bool = Field(default=False, description="Only false is supported.")
    chat_template_kwargs: dict[str, Any] = Field(
        default={}, description="Further variables that the chat template reads."
    )


class DetokenizeRequest(TokenizerBody):
    """The body of /detokenize."""

    tokens: Annotated[list[int], FailFast()]


async def tokenize(model: Served, body: TokenizeRequest) -> dict[str, Any]:
    """Returns the answer's body."""
    body.check()
    ids = await _ids(model, body)
    strings = None
    if body.return_token_strs:
        strings = await model.compute("pieces", "prompt", tokens=ids)
    return {
        "count": len(ids),
        "max_model_len": model.max_length,
        "tokens": ids,
        "token_strs": strings,
    }


async def detokenize(model: Served, body: DetokenizeRequest) -> dict[str, Any]:
    """Returns the answer's body."""
    body.check()
    return {"prompt": await model.text("tokens", body.tokens)}


async def _ids(model: Served, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        got = (
            "neither prompt nor messages"
            if body.prompt is None
            else "prompt together with messages"
        )
        raise InvalidInput("prompt", got, "one of them", "send one")
    special = body.add_special_tokens
    if body.prompt is not None:
        check_text("prompt", body.prompt)
        return await model.ids("prompt", body.prompt, special is not False)
    if body.continue_final_message:
        raise InvalidInput("continue_final_message", "true", "false", "remove it")
    if not isinstance(model, Generator):
        got, wanted = f"{model.name}, which is for {model.task}", "one that generates"
        raise InvalidInput("model", got, wanted, "send a prompt")
    assert body.messages is not None
    return await model.conversation(
        body.messages,
        add_generation_prompt=body.add_generation_prompt,
        add_special_tokens=special is True,
        template_kwargs=body.chat_template_kwargs,
    )
