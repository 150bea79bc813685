"""Open-loop load: requests leave when the timetable says so, whatever became of the earlier ones.

A closed loop would slow down with the system under test and hide its trouble. The loop is bounded all the same: beyond
`in_flight_max` a request is not sent but recorded as skipped, never forgotten.
"""

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from chaos.client import Client
from chaos.history import Record, Recorder
from gir.clock import Clock

Positive = Annotated[float, msgspec.Meta(gt=0.0)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
_WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs", "while", "engines", "count", "tokens")


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to send. Choices are drawn with `seed`, so two runs send the same requests at the same moments."""

    url: str
    more_urls: tuple[str, ...] = ()
    """Further routers; requests go to all of them in turn, but for those taken out (`Load.out`)."""
    rps: Positive
    duration_s: Positive
    models: tuple[str, ...]
    keys: tuple[tuple[str, str], ...] = (("", ""),)
    """(name, secret) of API keys, taken in turn at random."""
    stream_share: Share = 0.7
    poisson: bool = True
    """False spaces requests evenly."""
    prompt_tokens: int = 100
    output_tokens: int = 32
    """Each request asks for half to one and a half times as many."""
    prefixes: int = 0
    """Number of shared prompt beginnings, each of `prefix_tokens`; 0 makes every prompt its own."""
    prefix_tokens: int = 500
    users: int = 0
    """Number of end users, named in `user`, which sessions and canaries go by; 0 names none."""
    in_flight_max: int = 2_000
    within_s: Positive = 60.0
    """The client's patience with one request."""
    leave_share: Share = 0.0
    """Share of clients that hang up at a random moment of their first second."""
    headers: tuple[tuple[str, str], ...] = ()
    seed: int = 1


class Planned(msgspec.Struct, frozen=True):
    """One request before it is sent."""

    at_s: float
    """Seconds after the start."""
    record: Record
    request: bytes
    within_s: float


def timetable(plan: LoadPlan) -> Iterator[Planned]:
    """Every request of a plan, in order of time."""
    chance = random.Random(plan.seed)
    host = urlsplit(plan.url).netloc
    base = urlsplit(plan.url).path.rstrip("/")
    at_s, number = 0.0, 0
    while True:
        at_s += chance.expovariate(plan.rps) if plan.poisson else 1.0 / plan.rps
        if at_s >= plan.duration_s:
            return
        number += 1
        name, secret = chance.choice(plan.keys)
        model = chance.choice(plan.models)
        stream = chance.random() < plan.stream_share
        tokens = max(1, round(plan.output_tokens * chance.uniform(0.5, 1.5)))
        body: dict[str, object] = {
            "model": model,
            "messages": [{"role": "user", "content": _prompt(plan, chance, number)}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": stream,
        }
        user = f"user-{chance.randrange(plan.users)}" if plan.users else ""
        if user:
            body["user"] = user
        lines = [f"POST {base}/v1/chat/completions HTTP/1.1", f"host: {host}", "content-type: application/json"]
        lines += [f"{header}: {value}" for header, value in plan.headers]
        if secret:
            lines.append(f"authorization: Bearer {secret}")
        data = json.dumps(body).encode()
        head = "\r\n".join([*lines, f"content-length: {len(data)}", "", ""]).encode()
        record = Record(number=number, model=model, stream=stream, key=name, user=user, tokens_expected=tokens)
        record.leaves = plan.leave_share > 0 and chance.random() < plan.leave_share
        yield Planned(at_s, record, head + data, chance.random() if record.leaves else plan.within_s)


def _prompt(plan: LoadPlan, chance: random.Random, number: int) -> str:
    prefix = ""
    if plan.prefixes:
        prefix = _text(random.Random(chance.randrange(plan.prefixes)), plan.prefix_tokens)
    return f"{prefix}{number}: {_text(chance, plan.prompt_tokens)}"


def _text(chance: random.Random, tokens: int) -> str:
    """About `tokens` tokens of text, at four bytes each."""
    words: list[str] = []
    size = 0
    while size < tokens * 4:
        words.append(chance.choice(_WORDS))
        size += len(words[-1]) + 1
    return " ".join(words) + " "


class Load:
    """Runs a plan. `watch` is called with each record as its request ends; with `keep` they are collected too."""

    def __init__(
        self, plan: LoadPlan, clock: Clock, watch: Callable[[Record], None] | None = None, *, keep: bool = True
    ) -> None:
        self._clients: dict[str, Client] = {}
        for url in (plan.url, *plan.more_urls):
            parts = urlsplit(url)
            if parts.scheme != "http" or parts.hostname is None:
                raise ValueError(f"url is {url!r}: use http://host:port of a router")
            self._clients[url] = Client(parts.hostname, parts.port or 80, clock)
        self.plan = plan
        self.records: list[Record] = []
        self.started_s = 0.0
        self._clock = clock
        self._watch = watch
        self._keep = keep
        self._stopping = False
        self.in_flight = 0
        self.out: set[str] = set()
        """Routers that get nothing new, as a load balancer leaves out those that are not ready."""

    def stop(self) -> None:
        """Send nothing more; `run` returns when every answer has come."""
        self._stopping = True

    async def run(self) -> list[Record]:
        """Send everything, wait for every answer, return the history in order of numbers."""
        self.started_s = self._clock.monotonic_s()
        try:
            async with asyncio.TaskGroup() as group:
                for planned in timetable(self.plan):
                    due_s = self.started_s + planned.at_s
                    await self._clock.sleep_s(due_s - self._clock.monotonic_s())
                    if self._stopping:
                        break
                    planned.record.scheduled_s = due_s
                    planned.record.sent_s = self._clock.monotonic_s()
                    if self.in_flight < self.plan.in_flight_max:
                        self.in_flight += 1
                        _ = group.create_task(self._one(planned))
                    else:
                        planned.record.ended = "skipped"
                        self._ended(planned.record)
        finally:
            for client in self._clients.values():
                client.close()
        return sorted(self.records, key=lambda record: record.number)

    async def _one(self, planned: Planned) -> None:
        record = planned.record
        record.router = self._router_for(record.number)
        try:
            await self._clients[record.router].call(planned.request, Recorder(record), within_s=planned.within_s)
        finally:
            self.in_flight -= 1
        self._ended(record)

    def _router_for(self, number: int) -> str:
        urls = [url for url in self._clients if url not in self.out] or list(self._clients)
        return urls[number % len(urls)]

    def _ended(self, record: Record) -> None:
        if self._keep:
            self.records.append(record)
        if self._watch is not None:
            self._watch(record)
