"""The endpoint's routes for encoders, and for operators, in front of a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
import transformers
import urllib3
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor.server import Server

from tests.engine.generating import tiny_folder
from tests.reference import SENTENCES, edit_config, tiny_checkpoint
from tests.server.asking import PATIENCE_S, stderr_to, until
from tests.server.conftest import CONTROL_KEY
from tests.tolerance import MODEL_FP32

KEY = "a-key-of-the-tests"
QUERY, DOCUMENTS = SENTENCES[0], SENTENCES[1:6]
LONG = "word " * 900
PROMPTS = {"query": "Where was ", "document": "It is said: "}


def prompted(folder: Path) -> Path:
    """A tiny embedder with prompts."""
    tiny_checkpoint(folder, "bert")
    steps = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    modules = [
        {"idx": i, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(steps)
    ]
    files = {
        "modules.json": modules,
        "1_Pooling/config.json": {"pooling_mode": "mean"},
        "config_sentence_transformers.json": {"prompts": PROMPTS},
    }
    (folder / "1_Pooling").mkdir()
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def rankers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two with one label, of which one's files ask for logits, and one with three labels."""
    root = tmp_path_factory.mktemp("rankers")
    for name, labels in (("ranker", 1), ("logits", 1), ("three", 3)):
        tiny_checkpoint(root / name, "bert", "classify", num_labels=labels)
    edit_config(root / "logits", sentence_transformers={"activation_fn": "torch.nn.Identity"})
    return {path.name: path for path in root.iterdir()}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the endpoint logs."""
    return tmp_path_factory.mktemp("log") / "log"


@pytest.fixture(scope="module")
def server(
    rankers: dict[str, Path], minilm: Path, tmp_path_factory: pytest.TempPathFactory, log: Path
) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("repository")
    made = tmp_path_factory.mktemp("made")
    folders = {
        **rankers,
        "minilm": minilm,
        "prompted": prompted(made / "prompted"),
        "tiny": tiny_folder(made / "tiny"),
    }
    for name, folder in folders.items():
        import_folder(
            folder,
            root,
            name=name,
            settings={"dtype": "float32"},
            deployment=Deployment(device="cpu"),
            link=True,
        )
    (made / "keys").write_text(f"another-key\n{KEY}\n")
    (made / "chat.jinja").write_text("{{ messages[0].content }}{{ suffix | default('?') }}")
    settings = ServerSettings(
        http_port=0,
        grpc_port=0,
        metrics_port=0,
        openai_port=0,
        control_key=CONTROL_KEY,
        accept_token_ids=True,
        api_key_file=made / "keys",
        chat_template=made / "chat.jinja",
        log_format="json",
    )
    server = Server([root], settings, report=print)
    with stderr_to(log):
        server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    assert server.openai is not None
    url = f"http://{server.openai.address}/v1"
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=PATIENCE_S) as client:
        yield client


class Http:
    """Requests without a client library."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}"
        self._pool = urllib3.PoolManager()

    def __call__(self, path: str, body: Any = None, **headers: str) -> urllib3.BaseHTTPResponse:
        """GET, or POST with a body; with the key unless headers say otherwise."""
        method = "GET" if body is None else "POST"
        headers = {"Authorization": f"Bearer {KEY}"} | headers
        return self._pool.request(method, self._url + path, json=body, headers=headers)


@pytest.fixture(scope="module")
def http(server: Server) -> Http:
    assert server.openai is not None
    return Http(server.openai.address)


def scores_of(folder: Path, pairs: list[tuple[str, str]]) -> np.ndarray:
    """transformers' logits."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        return np.array(
            [model(**tokenizer(*pair, return_tensors="pt")).logits[0, 0].item() for pair in pairs]
        )


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits))


def error_of(response: urllib3.BaseHTTPResponse, status: int = 400) -> dict[str, Any]:
    assert response.status == status, response.data
    error: dict[str, Any] = response.json()["error"]
    return error


def test_usage_is_what_was_computed_not_what_was_sent(client: openai.OpenAI) -> None:
    def tokens(text: Any, **more: Any) -> tuple[int, int]:
        usage = client.embeddings.create(model="minilm", input=text, extra_body=more).usage
        return usage.prompt_tokens, usage.total_tokens

    assert tokens(LONG, truncate=True) == (256, 256)
    assert tokens([LONG, "cat"], truncate=True, max_length=100) == (103, 103)
    assert tokens([LONG * 30, "cat"], truncate_prompt_tokens=-1) == (259, 259)
    assert tokens([LONG, "cat"], truncate_prompt_tokens=7) == (10, 10)
    assert tokens([[101, 4937, 102], [101, 102]]) == (5, 5)


def test_ids_of_the_models_own_tokenizer_give_the_texts_vector(client: openai.OpenAI) -> None:
    ids, text = (
        client.embeddings.create(model="minilm", input=given).data[0].embedding
        for given in ([101, 1037, 4937, 25126, 102], "a cat sleeps")
    )
    np.testing.assert_allclose(ids, text, atol=MODEL_FP32)


def test_a_shorter_vector_is_the_beginning_of_the_whole_one(client: openai.OpenAI) -> None:
    def vector(**more: Any) -> np.ndarray:
        return np.array(
            client.embeddings.create(model="minilm", input="x", **more).data[0].embedding
        )

    whole, short = vector(), vector(dimensions=10)
    np.testing.assert_allclose(short, whole[:10] / np.linalg.norm(whole[:10]), rtol=1e-5)
    plain = {"extra_body": {"normalize": False}}
    np.testing.assert_array_equal(vector(dimensions=10, **plain), vector(**plain)[:10])


def test_prompts_are_chosen_by_name_or_by_kind_of_input(client: openai.OpenAI) -> None:
    def embedded(text: str, model: str = "prompted", **more: Any) -> tuple[list[float], int]:
        answer = client.embeddings.create(model=model, input=text, extra_body=more)
        return answer.data[0].embedding, answer.usage.prompt_tokens

    spelled = embedded("Where was the treaty signed?")
    assert embedded("the treaty signed?", input_type="query") == spelled
    assert embedded("the treaty signed?", prompt_name="query") == spelled
    assert embedded("the treaty signed?", prompt="Where was ") == spelled
    assert embedded("x", input_type="document") == embedded("It is said: x")
    assert embedded("x", "minilm", input_type="query") == embedded("x", "minilm")
    with pytest.raises(openai.BadRequestError, match="prompt_name: got 'q', wanted one of query"):
        embedded("x", prompt_name="q")


def test_documents_are_ranked_by_the_models_scores(http: Http, rankers: dict[str, Path]) -> None:
    asked = {"model": "ranker", "query": QUERY, "documents": DOCUMENTS}
    wanted = sigmoid(scores_of(rankers["ranker"], [(QUERY, each) for each in DOCUMENTS]))
    answer = http("/v1/rerank", asked).json()
    order = np.argsort(-wanted).tolist()
    assert [result["index"] for result in answer["results"]] == order
    for result in answer["results"]:
        assert abs(result["relevance_score"] - wanted[result["index"]]) < MODEL_FP32
        assert result["document"] == {"text": DOCUMENTS[result["index"]]}
    tokenizer = transformers.AutoTokenizer.from_pretrained(rankers["ranker"])
    tokens = sum(len(tokenizer(QUERY, each)["input_ids"]) for each in DOCUMENTS)
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    objects = [{"text": each} for each in DOCUMENTS]
    two = http("/rerank", asked | {"documents": objects, "top_n": 2, "return_documents": False})
    bare = [{k: result[k] for k in ("index", "relevance_score")} for result in answer["results"]]
    assert two.json()["results"] == bare[:2]
    assert http("/v2/rerank", asked).json()["results"] == answer["results"]  # Cohere's ClientV2


def test_a_long_query_and_a_long_document_are_truncated_together(http: Http) -> None:
    long = {"query": LONG * 100, "documents": ["a cat", LONG * 100], "truncate_prompt_tokens": -1}
    answer = http("/rerank", {"model": "ranker"} | long)
    assert answer.json()["usage"]["prompt_tokens"] == 64 + 64


def test_a_ranker_that_asks_for_logits_gives_them(http: Http, rankers: dict[str, Path]) -> None:
    pairs = [(QUERY, each) for each in DOCUMENTS]
    wanted = scores_of(rankers["logits"], pairs)
    asked = {"text_1": QUERY, "text_2": DOCUMENTS}
    scored = http("/score", {"model": "logits", **asked}).json()["data"]
    np.testing.assert_allclose([each["score"] for each in scored], wanted, atol=MODEL_FP32)
    tei = {"model": "ranker", "query": QUERY, "texts": DOCUMENTS, "raw_scores": True}
    ranked = http("/rerank", tei | {"return_text": True}).json()
    logits = scores_of(rankers["ranker"], pairs)
    for each in ranked:
        assert abs(each["score"] - logits[each["index"]]) < MODEL_FP32
        assert each["text"] == DOCUMENTS[each["index"]]


def test_scores_are_of_pairs_or_of_one_with_each(http: Http, rankers: dict[str, Path]) -> None:
    def scores(first: Any, second: Any) -> list[float]:
        answer = http("/v1/score", {"model": "ranker", "text_1": first, "text_2": second}).json()
        assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
        return [each["score"] for each in answer["data"]]

    first, second = DOCUMENTS[:2], DOCUMENTS[2:4]
    wanted = sigmoid(scores_of(rankers["ranker"], list(zip(first, second, strict=True))))
    np.testing.assert_allclose(scores(first, second), wanted, atol=MODEL_FP32)
    assert len(scores(QUERY, DOCUMENTS)) == len(DOCUMENTS)
    assert len(scores(QUERY, QUERY)) == 1


@pytest.mark.sweep
def test_as_many_long_texts_as_a_request_has_do_not_refuse_each_other(http: Http) -> None:
    asked = {"model": "minilm", "input": ["a cat " * 1300] * 2048, "truncate_prompt_tokens": 4}
    answer = http("/v1/embeddings", asked | {"encoding_format": "base64"})
    assert (answer.status, len(answer.json().get("data", ()))) == (200, 2048), answer.data[:300]


BAD_RANKINGS: list[tuple[str, dict[str, Any], str, str]] = [
    ("/rerank", {"model": "three"}, "model", "model: got three, which has 3 labels, wanted a"),
    ("/rerank", {"model": "minilm"}, "model", "model: got minilm, which is for embed, wanted one"),
    (
        "/rerank",
        {"model": None},
        "model",
        "model: not set, wanted one of those that can rank",
    ),
    ("/rerank", {"documents": []}, "documents", "documents: got []"),
    ("/rerank", {"documents": None}, "documents", "documents: got neither it nor texts"),
    (
        "/rerank",
        {"documents": ["x", {"image": "x"}]},
        "documents",
        "documents: got {'image'",
    ),
    ("/rerank", {"documents": ["x"] * 2049}, "documents", "documents: got 2049 entries"),
    ("/rerank", {"documents": [LONG]}, "documents", "documents: got 27"),
    ("/rerank", {"documents": [*["x"] * 40, LONG]}, "documents[40]", "documents[40]: got 27"),
    (
        "/rerank",
        {"query": "q" * 2**14, "documents": ["x"] * 1024},
        "body",
        "body: got 16778240 characters, a query counted with each of its 1024 documents",
    ),
    (
        "/rerank",
        {"truncate_prompt_tokens": 3},
        "truncate_prompt_tokens",
        "truncate_prompt_tokens: got 3, wanted more than the 3 special tokens",
    ),
    ("/rerank", {"top_n": -1}, "top_n", "top_n: got -1"),
    ("/rerank", {"rank_fields": ["x"]}, "rank_fields", "rank_fields: got ['x'], wanted one of"),
    (
        "/score",
        {"text_2": ["x", "y"], "text_1": ["x"] * 3},
        "text_2",
        "text_2: got 2 texts",
    ),
    ("/score", {"text_1": {"content": []}}, "text_1", "text_1: got {'content'"),
    ("/score", {"text_2": ["x", LONG]}, "text_2[1]", "text_2[1]: got 27"),
    ("/score", {"text_1": ["x", LONG], "text_2": ["x"] * 2}, "text_1[1]", "text_1[1]: got 27"),
]


def test_an_embedding_that_cannot_be_made_names_its_input(http: Http) -> None:
    for ahead in (0, 1, 40):
        asked = {"model": "minilm", "input": [*["x"] * ahead, LONG * 100]}
        error = error_of(http("/v1/embeddings", asked))
        place = f"input[{ahead}]" if ahead else "input"
        assert (error["param"], error["message"].startswith(f"{place}: got ")) == (place, True)


@pytest.mark.parametrize(("path", "given", "param", "words"), BAD_RANKINGS)
def test_a_ranking_that_cannot_be_made_says_why(
    http: Http, path: str, given: dict[str, Any], param: str, words: str
) -> None:
    asked = {
        "/rerank": {"query": "q", "documents": ["x"]},
        "/score": {"text_1": "a", "text_2": "b"},
    }
    error = error_of(http(path, {"model": "ranker"} | asked[path] | given))
    assert (error["param"], error["message"].startswith(words)) == (param, True), error


def test_tokens_are_made_and_unmade(http: Http) -> None:
    answer = http("/tokenize", {"model": "minilm", "prompt": "a cat sleeps"}).json()
    ids = [101, 1037, 4937, 25126, 102]
    assert answer == {"count": 5, "max_model_len": 256, "tokens": ids, "token_strs": None}
    bare = {"model": "minilm", "prompt": "a cat", "add_special_tokens": False}
    bare_answer = http("/tokenize", bare | {"return_token_strs": True}).json()
    assert bare_answer["token_strs"] == ["a", "cat"]
    assert http("/detokenize", {"model": "minilm", "tokens": ids[1:4]}).json() == {
        "prompt": "a cat sleeps"
    }
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    rendered = http("/tokenize", chat | {"chat_template_kwargs": {"suffix": "!"}}).json()
    assert rendered["max_model_len"] == 128
    back = http("/detokenize", {"model": "tiny", "tokens": rendered["tokens"]}).json()
    assert back == {"prompt": "hi!"}
    for path, body, words in (
        ("/tokenize", {"model": "minilm"}, "prompt: got neither prompt nor messages"),
        ("/tokenize", chat | {"model": "minilm"}, "model: got minilm, which is for embed"),
        ("/tokenize", {"prompt": "x"}, "model: not set, wanted one of those that can be asked"),
        ("/detokenize", {"model": "tiny", "tokens": [999]}, "tokens: got id 999"),
        ("/detokenize", {"model": "tiny", "tokens": [-1]}, "tokens: got id -1"),
    ):
        assert error_of(http(path, body))["message"].startswith(words)


def test_the_operators_template_and_a_requests_variables_make_the_prompt(
    client: openai.OpenAI,
) -> None:
    messages: Any = [{"role": "user", "content": "x" * 20}]
    for extra, tokens in (
        ({}, 21),
        ({"chat_template_kwargs": {"suffix": "12345"}}, 25),
        ({"truncate_prompt_tokens": 4, "add_generation_prompt": True}, 4),
    ):
        answer = client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=1, extra_body=extra
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == tokens


def test_the_last_tokens_of_a_prompt_are_kept(client: openai.OpenAI) -> None:
    def text(prompt: str, **more: Any) -> str:
        asked: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
        return (
            client.completions.create(model="tiny", prompt=prompt, **asked, extra_body=more)
            .choices[0]
            .text
        )

    assert text("x" * 300 + "Hello", truncate_prompt_tokens=5) == text("Hello")
    assert text("x" * 300, truncate_prompt_tokens=-1) == text("x" * 120)
    with pytest.raises(openai.BadRequestError, match="truncate_prompt_tokens: got 0, wanted 1"):
        text("x", truncate_prompt_tokens=0)


def test_every_route_but_health_asks_for_a_key(http: Http) -> None:
    paths = http("/openapi.json").json()["paths"]
    assert {"/v1/models", "/v1/rerank", "/tokenize", "/metrics", "/docs", "/health"} <= set(paths)
    for path in ["/openapi.json", "/nowhere", *paths]:
        for header in ("", "Bearer", "Bearer wrong", f"Basic {KEY}", KEY, f"Bearer {KEY}x"):
            response = http(path, Authorization=header)
            if path == "/health":
                assert (response.status, response.json()) == (200, {"status": "ok"})
                continue
            error = error_of(response, 401)
            assert error["code"] == "invalid_api_key"
            assert response.headers["WWW-Authenticate"] == "Bearer"
            assert KEY not in error["message"]
    assert http("/v1/models").status == 200
    assert http("/v1/models", Authorization="bearer another-key").status == 200


def test_what_operators_ask_is_answered(http: Http, server: Server) -> None:
    health = http("/health").json()
    assert health["status"] == "ok"
    assert sorted(health["models"]) == sorted(server.models)
    server.unload("three")
    try:
        missing = http("/health")
        assert error_of(missing, 503)["message"].startswith("models: got three not ready")
        unnamed = http("/health", Authorization="")
        number = f"models: got 1 of {len(server.models)} not ready"
        assert error_of(unnamed, 503)["message"].startswith(number)
    finally:
        server.load("three")
    assert http("/health").status == 200
    page = http("/metrics")
    assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b'fusewire_requests_total{model="minilm"' in page.data
    docs = http("/docs")
    assert b"/v1/chat/completions" in docs.data
    assert b"repetition_penalty" in docs.data
    for outside in (b"<script", b"http://", b"https://", b"@import", b"src="):
        assert outside not in docs.data


def test_a_request_has_an_id_its_own_or_a_new_one(http: Http) -> None:
    def answered(given: str = "") -> str:
        return str(http("/v1/models", **{"X-Request-Id": given}).headers["X-Request-Id"])

    assert answered("mine-1") == "mine-1"
    made = {answered() for _ in range(2)} | {answered("x" * 129), answered("a b")}
    assert len(made) == 4
    assert all(len(each) == 32 for each in made)


def test_a_request_has_a_line_in_the_log(http: Http, log: Path) -> None:
    asked = {"model": "ranker", "query": QUERY, "documents": DOCUMENTS}
    response = http("/v1/rerank?secret=1", asked, **{"X-Request-Id": "logged-1"})
    refused = {"Authorization": "Bearer wrong", "X-Request-Id": "logged-2"}
    http("/v1/nowhere%0Aforged", **refused)

    def logged() -> list[dict[str, Any]]:  # written after the answer was sent
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return [line for line in lines if line.get("request_id", "").startswith("logged-")]

    until(lambda: len(logged()) == 2)
    first, second = logged()
    for line in (first, second):
        assert line.pop("timestamp")
        assert line.pop("ms") > 0
    always = {"level": "info", "logger": "fusewire.access", "message": "request"}
    assert first == always | {
        "method": "POST",
        "path": "/v1/rerank",
        "status": 200,
        "model": "ranker",
        "prompt_tokens": response.json()["usage"]["prompt_tokens"],
        "request_id": "logged-1",
    }
    assert second == always | {
        "method": "GET",
        "path": "/v1/nowhere%0Aforged",
        "status": 401,
        "request_id": "logged-2",
    }
