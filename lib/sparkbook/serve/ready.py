"""When an engine may be called ready: not when its port opens, but when it has answered a real
request.

The stages, in order: the port is open; `/health` says 200; `/v1/models` shows the served name; one
streamed completion arrives; and, where the recipe claims them, one tool call, one reply with
reasoning, one reply that follows a JSON schema. A server that does not chat is asked for what it
does instead: an embedding, an order of two texts, the text of a second of sound. Each is timed.
An engine whose process has ended, or whose log holds a fault that no start survives, ends the wait
at once instead of at the deadline, with the log doctor's diagnosis.

Before each request the engine is asked whether it is the one that listens at its address: another
server there is never ready, and never gets the API key.
"""

from __future__ import annotations

import html
import io
import json
import math
import socket
import time
import wave
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit

from sparkbook.errors import SparkbookError
from sparkbook.logs.doctor import Diagnosis
from sparkbook.logs.follow import Follower
from sparkbook.recipes.schema import Capabilities
from sparkbook.serve import tool_calls
from sparkbook.serve.endpoint import Endpoint
from sparkbook.serve.identity import Stranger
from sparkbook.serve.stream import StreamError, stream_chat
from sparkbook.units import format_seconds

ANSWER_SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}},
    "required": ["answer"],
    "additionalProperties": False,
}


class Watched(Protocol):
    """What readiness needs to know of an engine it did not start itself."""

    @property
    def running(self) -> bool: ...
    @property
    def exit_status(self) -> int | None: ...
    def listens(self) -> bool:
        """Return whether it is this engine that listens at its address; raises `Stranger` where
        another program does.
        """
        ...

    def tail(self, lines: int = 15) -> list[str]: ...
    def printed(self) -> bytes:
        """Return what it printed since the last call."""
        ...


class NotReady(SparkbookError):
    """The engine did not get ready.

    Attributes:
        message: what happened, without the log.
        log_tail: the last lines it printed.
        stages: what it passed before.
        diagnosis: the log doctor's judgement, where it found a fault.
    """

    def __init__(
        self,
        message: str,
        log_tail: list[str],
        stages: list[Stage],
        diagnosis: Diagnosis | None = None,
    ):
        self.message, self.log_tail, self.stages, self.diagnosis = (
            message,
            log_tail,
            stages,
            diagnosis,
        )
        lines = "".join(f"\n    {line}" for line in log_tail)
        super().__init__(message + (f"\nthe last lines of its log:{lines}" if lines else ""))


@dataclass(frozen=True)
class Stage:
    """One passed stage: its name, the seconds it took after the one before, and what was seen."""

    name: str
    seconds: float
    detail: str


@dataclass
class Readiness:
    """The stages an engine passed on its way to ready."""

    stages: list[Stage] = field(default_factory=list)

    @property
    def total_s(self) -> float:
        """Seconds from the first look to ready."""
        return sum(stage.seconds for stage in self.stages)

    def __str__(self) -> str:
        return "\n".join(
            f"{stage.name:<12} {format_seconds(stage.seconds):>10}  {stage.detail}"
            for stage in self.stages
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(s.name)}</td><td>{format_seconds(s.seconds)}</td><td>{html.escape(s.detail)}</td></tr>"
            for s in self.stages
        )
        return (
            "<table"
            " class='readiness'><thead><tr><th>stage</th><th>took</th><th>seen</th></tr></thead>"
            f"<tbody>{rows}<tr><th>ready</th><th>{format_seconds(self.total_s)}</th><td></td></tr></tbody></table>"
        )


def wait_ready(  # noqa: PLR0913 - each is a choice of the caller's own; two are tests' seams
    endpoint: Endpoint,
    claims: Capabilities | None = None,
    *,
    process: Watched | None = None,
    requests: bool = True,
    deadline_s: float = 900.0,
    poll_s: float = 0.25,
    progress: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Readiness:
    """Wait until the endpoint has answered a real request.

    Args:
        endpoint: where to look; its model's name must be among the served ones.
        claims: what the recipe says the server can do; what is claimed is tried, but not pictures,
            video and sound in a chat.
        process: the engine, where it can be watched: its end, a fatal line of its log, or another
            program at its address ends the wait.
        requests: send real requests; False ends with `/v1/models`, for when the first request is
            itself what is to be measured.
        deadline_s: seconds for all stages together.
        poll_s: seconds between two looks.
        progress: called with one line when a stage is passed and every 10 seconds while one is
            waited for.
        clock, sleep: replaced in tests.

    Returns:
        The timed stages.

    Raises:
        NotReady: the engine ended, failed, or was not ready at the deadline; the message says at
            which stage and shows the log's end.
    """
    begin = last_said = clock()
    readiness = Readiness()
    follower = Follower()
    say = progress or (lambda _line: None)
    for name, probe in _stages(endpoint, claims or Capabilities(structured_output=False), requests):
        entered = clock()
        while True:
            # The owner first: an engine that ends because its port is taken can't say by whom.
            not_listening = _not_listening(process, name, readiness)
            _check_alive(process, follower, name, readiness)
            detail = not_listening or probe(max(1.0, begin + deadline_s - clock()))
            if detail.passed:
                break
            now = clock()
            if now - begin > deadline_s:
                _fail(
                    f"not ready after {format_seconds(now - begin)}: still waiting for {name}"
                    f" ({detail.text})",
                    process,
                    readiness,
                )
            if detail.final:
                _fail(f"{name} failed: {detail.text}", process, readiness)
            if now - last_said >= 10:
                last_said = now
                say(f"waiting for {name}, {format_seconds(now - begin)} so far: {detail.text}")
            sleep(poll_s)
        readiness.stages.append(Stage(name, clock() - entered, detail.text))
        say(f"{name}: {detail.text} ({format_seconds(readiness.stages[-1].seconds)})")
    return readiness


@dataclass(frozen=True)
class _Seen:
    """What a probe saw: passed, not yet, or (final) never."""

    text: str
    passed: bool = True
    final: bool = False


def _stages(
    endpoint: Endpoint, claims: Capabilities, requests: bool
) -> list[tuple[str, Callable[[float], _Seen]]]:
    stages: list[tuple[str, Callable[[Endpoint, float], _Seen]]]
    stages = [("port", _port), ("health", _health), ("models", _models)]
    if requests:
        stages += [("completion", _completion)] if claims.chat else []
        stages += [("tools", _tool_call)] if claims.tools else []
        stages += [("reasoning", _reasoning)] if claims.reasoning else []
        stages += [("json schema", _json_schema)] if claims.structured_output else []
        stages += [("embedding", _embedding)] if claims.embedding else []
        stages += [("reranking", _reranking)] if claims.reranking else []
        stages += [("transcript", _transcription)] if claims.transcription else []
    return [(name, partial(probe, endpoint)) for name, probe in stages]


def _not_listening(process: Watched | None, stage: str, readiness: Readiness) -> _Seen | None:
    """Return why nothing may be sent yet; None if the engine listens, or can't be asked."""
    try:
        if process is None or process.listens():
            return None
    except Stranger as error:
        # The engine's log has nothing to do with it.
        raise NotReady(f"{stage} failed: {error}", [], readiness.stages) from None
    return _Seen("the engine does not listen", passed=False)


def _check_alive(
    process: Watched | None, follower: Follower, stage: str, readiness: Readiness
) -> None:
    if process is None:
        return
    running = process.running  # asked first: what it printed before it ended is then all there
    diagnosis = follower.fault(process.printed(), ended=not running)
    if running and diagnosis is None:
        return
    state = "failed" if running else f"ended with status {process.exit_status}"
    _fail(f"the engine {state} while waiting for {stage}", process, readiness, diagnosis)


def _fail(
    message: str, process: Watched | None, readiness: Readiness, diagnosis: Diagnosis | None = None
) -> None:
    if diagnosis and (fault := diagnosis.primary):
        message += f": {fault.message} ({fault.rule})" + (
            f"\nwhat to do: {fault.fix}" if fault.fix else ""
        )
    raise NotReady(message, process.tail() if process else [], readiness.stages, diagnosis)


def _port(endpoint: Endpoint, _timeout_s: float) -> _Seen:
    parts = urlsplit(endpoint.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=2).close()
    except OSError as error:
        return _Seen(error.strerror or str(error), passed=False)
    return _Seen(f"{parts.hostname}:{port} is open")


def _health(endpoint: Endpoint, _timeout_s: float) -> _Seen:
    try:
        status = endpoint.get("/health", timeout_s=5).status_code
    except SparkbookError as error:
        return _Seen(str(error), passed=False)
    return _Seen(f"/health says {status}", passed=status == 200)


def _models(endpoint: Endpoint, _timeout_s: float) -> _Seen:
    # A refused key or a wrong name does not mend itself: SparkbookError of a refused key passes
    # through.
    names = endpoint.served_models()
    if endpoint.model and endpoint.model not in names:
        return _Seen(
            f"the server serves {', '.join(names) or 'nothing'}, not {endpoint.model}",
            passed=False,
            final=True,
        )
    return _Seen(f"serves {', '.join(names)}")


def _asks(question: str, **more: Any) -> Callable[[Endpoint, float], Any]:
    """Return a chat request; greedy, so that a start is judged on the same text every time."""

    def ask(endpoint: Endpoint, timeout_s: float) -> Any:
        with endpoint.client(timeout_s, timeout_s) as client:
            return client.chat.completions.create(
                model=endpoint.model,
                messages=[{"role": "user", "content": question}],
                temperature=0,
                **more,
            )

    return ask


def _completion(endpoint: Endpoint, timeout_s: float) -> _Seen:
    try:
        reply = stream_chat(endpoint, "Say hello.", max_tokens=8, timeout_s=timeout_s)
    except StreamError as error:
        return _Seen(
            f"the completion failed: {error.why}", passed=False, final=not error.connection
        )
    if not reply.tokens:
        return _Seen("the completion came back empty", passed=False, final=True)
    return _Seen(f"{reply.tokens} tokens streamed: {reply.text.strip()[:40]!r}")


def _service(
    ask: Callable[[Any, str], Any], judge: Callable[[Any], str], claim: str
) -> Callable[[Endpoint, float], _Seen]:
    """A probe of a server that does not chat."""

    def probe(endpoint: Endpoint, timeout_s: float) -> _Seen:
        import openai

        try:
            with endpoint.client(timeout_s, timeout_s) as client:
                return _Seen(judge(ask(client, endpoint.model)))
        except openai.OpenAIError as error:
            return _Seen(f"the request failed: {error}", passed=False, final=True)
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
            return _Seen(
                f"the reply is no {claim} ({type(error).__name__})", passed=False, final=True
            )

    return probe


def _hum() -> bytes:
    """A second of a quiet tone, as a WAV file."""
    rate = 16_000
    sound = array("h", (int(3000 * math.sin(2 * math.pi * 220 * t / rate)) for t in range(rate)))
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(sound.itemsize)
        out.setframerate(rate)
        out.writeframes(sound.tobytes())
    return file.getvalue()


def _order(reply: Any) -> str:
    """What a reranker says: results, the best first."""
    scores = [f"{float(one['relevance_score']):.2f}" for one in reply["results"]]
    if len(scores) != len(_TEXTS):
        raise ValueError
    return f"scores {', '.join(scores)}"


_embedding = _service(
    lambda client, model: client.embeddings.create(
        model=model, input="Paris is in France.", encoding_format="float"
    ),
    lambda reply: f"a vector of {len(reply.data[0].embedding)} numbers",
    "embedding",
)
_TEXTS = ("Paris is the capital of France.", "Bread is baked in an oven.")
_reranking = _service(
    lambda client, model: client.post(
        "/rerank",
        cast_to=object,
        body={"model": model, "query": "Where is Paris?", "documents": list(_TEXTS)},
    ),
    _order,
    "order of texts",
)
_transcription = _service(
    lambda client, model: client.audio.transcriptions.create(
        model=model, file=("hum.wav", _hum(), "audio/wav")
    ),
    lambda reply: f"hears {str(reply.text).strip()[:40]!r}",
    "transcript",
)


def _reply(
    ask: Callable[[Endpoint, float], Any], judge: Callable[[Any], str | None], claim: str
) -> Callable[[Endpoint, float], _Seen]:
    """Return a probe that sends one request and lets `judge` say what it saw, or None when the
    claim is not kept.
    """

    def probe(endpoint: Endpoint, timeout_s: float) -> _Seen:
        import openai

        try:
            message = ask(endpoint, timeout_s).choices[0].message
            seen, content = judge(message), message.content
        except openai.OpenAIError as error:
            return _Seen(f"the request failed: {error}", passed=False, final=True)
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
            return _Seen(f"the reply is no chat ({type(error).__name__})", passed=False, final=True)
        if seen:
            return _Seen(seen)
        return _Seen(
            f"the recipe claims {claim}, but the reply has none: {content!r}",
            passed=False,
            final=True,
        )

    return probe


def _reasoned(message: Any) -> str | None:
    # vLLM names the field `reasoning`; releases before 0.12 and other servers say
    # `reasoning_content`.
    text = getattr(message, "reasoning", None) or getattr(message, "reasoning_content", None)
    return f"reasons: {text.strip()[:40]!r}" if text else None


def _follows_schema(message: Any) -> str | None:
    try:
        value = json.loads(message.content or "")
    except ValueError:
        return None
    return (
        f"answers {json.dumps(value)}"
        if isinstance(value, dict) and value.get("answer") in ("yes", "no")
        else None
    )


_QUIETLY = {"chat_template_kwargs": {"enable_thinking": False}}
_ANSWER_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "schema": ANSWER_SCHEMA},
}


def _tool_call(endpoint: Endpoint, timeout_s: float) -> _Seen:
    """Ask for one call, whole and streamed: what an agent sends."""
    try:
        call, faults = tool_calls.ready(endpoint, timeout_s)
    except SparkbookError as error:
        return _Seen(f"the request failed: {error}", passed=False, final=True)
    if faults:
        fault = faults[0]
        text = f"the recipe claims tool calls: {fault.message} ({fault.rule})"
        if fault.evidence:
            text += f": {fault.evidence}"
        return _Seen(f"{text}\nwhat to do: {fault.fix}", passed=False, final=True)
    return _Seen(call)


_reasoning = _reply(_asks("12*17", max_tokens=256), _reasoned, "reasoning")
_json_schema = _reply(
    _asks(
        "Is Paris in France? Answer as JSON.",
        max_tokens=48,
        response_format=_ANSWER_FORMAT,
        extra_body=_QUIETLY,
    ),
    _follows_schema,
    "structured output",
)
