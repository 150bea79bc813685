"""Which counters a request meets, what it reserves, what its client reads."""

import msgspec
import pytest

from gir.admit import rules
from gir.admit.estimate import TokenEstimator
from gir.admit.limits import Limiter, overridden
from gir.admit.ports import LocalLimitStore
from gir.admit.reservation import LimitExceeded, Reservation, duration
from gir.admit.rules import COUNTERS_MAX, Counters, counter_name, matches, rule_faults
from gir.clock import ManualClock
from gir.model.ids import ModelId
from gir.model.policy import LimitRule
from gir.model.request import InferenceRequest, Usage
from gir.stores.memory import MemoryStore
from tests.support.limiting import request


def limiter(*rules: LimitRule, region: str = "eu") -> tuple[Limiter, ManualClock]:
    clock = ManualClock()
    return Limiter(rules, MemoryStore(clock), clock=clock, region=region), clock


def let_in(limits: Limiter, clock: ManualClock, asked: InferenceRequest) -> Reservation:
    reservation = limits.reserve_now(asked, clock.monotonic_s())
    assert reservation is not None
    return reservation


def refused(limits: Limiter, clock: ManualClock, asked: InferenceRequest) -> LimitExceeded:
    with pytest.raises(LimitExceeded) as caught:
        limits.reserve_now(asked, clock.monotonic_s())
    return caught.value


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (LimitRule(name="r"), True),
        (LimitRule(name="r", tenant="team", model="llama", key="key", region="eu"), True),
        (LimitRule(name="r", tenant="other"), False),
        (LimitRule(name="r", model="other"), False),
        (LimitRule(name="r", key="other"), False),
        (LimitRule(name="r", region="us"), False),
    ],
)
def test_a_rule_counts_what_all_its_fields_match(rule: LimitRule, expected: bool) -> None:
    assert matches(rule, request(), "eu") is expected


def test_a_rule_on_an_alias_counts_requests_that_asked_for_it() -> None:
    aliased = msgspec.structs.replace(request(), model_asked=ModelId("fast"))
    assert matches(LimitRule(name="r", model="fast"), aliased, "")
    assert matches(LimitRule(name="r", model="llama"), aliased, "")


def test_a_rule_on_an_alias_counts_nobody_who_asked_for_the_model_itself() -> None:
    limits, clock = limiter(LimitRule(name="r", requests_per_min=1, model="fast"))
    aliased = [msgspec.structs.replace(request(number), model_asked=ModelId("fast")) for number in range(2)]
    let_in(limits, clock, request(10))
    let_in(limits, clock, aliased[0])
    refused(limits, clock, aliased[1])
    let_in(limits, clock, request(11))


def test_counters_are_per_combination() -> None:
    by_all = LimitRule(name="r", per=("tenant", "model", "key", "region"))
    assert counter_name(by_all, request(), "eu") == "r:team:llama:key:eu"
    assert counter_name(LimitRule(name="r", per=()), request(), "eu") == "r"


def test_names_from_outside_cannot_forge_another_counter() -> None:
    rule = LimitRule(name="r", per=("tenant", "model"))
    assert counter_name(rule, request(tenant="a:b", model="c"), "") != counter_name(
        rule, request(tenant="a", model="b:c"), ""
    )
    assert "{" not in counter_name(rule, request(model="{x}"), "")
    assert len(counter_name(rule, request(model="m" * 10_000), "")) < 300


@pytest.mark.parametrize("long", ["m" * 200, "\u6a21" * 20])
def test_names_that_differ_only_far_behind_have_counters_of_their_own(long: str) -> None:
    rule = LimitRule(name="r")
    first, second = (counter_name(rule, request(tenant=long + end), "") for end in "ab")
    assert first != second
    assert counter_name(rule, request(tenant=first.partition(":")[2]), "") != first


def test_credentials_of_two_tenants_share_no_counter_though_their_issuers_named_them_alike() -> None:
    rule = LimitRule(name="r", per=("key",))
    assert counter_name(rule, request(tenant="a"), "") != counter_name(rule, request(tenant="b"), "")


def test_each_tenant_has_its_own_and_the_tightest_rule_decides() -> None:
    limits, clock = limiter(
        LimitRule(name="wide", requests_per_min=10), LimitRule(name="narrow", model="llama", requests_per_min=2)
    )
    for number in range(2):
        let_in(limits, clock, request(number))
    error = refused(limits, clock, request(3))
    assert (error.rule, error.reason) == ("narrow", "limit:narrow:requests")
    assert "`narrow`" in error.message
    assert let_in(limits, clock, request(4, tenant="other")) is not None
    assert let_in(limits, clock, request(5, model="qwen")) is not None


def test_a_refused_request_costs_nothing_elsewhere() -> None:
    limits, clock = limiter(
        LimitRule(name="wide", requests_per_min=10), LimitRule(name="narrow", model="llama", requests_per_min=1)
    )
    let_in(limits, clock, request(0))
    for number in range(1, 30):
        refused(limits, clock, request(number))
    for number in range(30, 39):
        let_in(limits, clock, request(number, model="qwen"))
    assert refused(limits, clock, request(40, model="qwen")).rule == "wide"


def test_concurrency_counts_those_that_run() -> None:
    limits, clock = limiter(LimitRule(name="places", concurrency_max=2))
    first = let_in(limits, clock, request(1))
    let_in(limits, clock, request(2))
    error = refused(limits, clock, request(3))
    assert error.reason == "limit:places:concurrency"
    assert error.retry_after_s == 1.0
    limits.settle(first, None, started=True, now_s=clock.monotonic_s())
    clock.advance_s(0.1)
    let_in(limits, clock, request(4))


def test_failure_before_the_first_token_refunds_everything() -> None:
    limits, clock = limiter(LimitRule(name="r", requests_per_min=1, tokens_per_min=1_000, concurrency_max=1))
    for number in range(5):
        reservation = let_in(limits, clock, request(number))
        limits.settle(reservation, None, started=False, now_s=clock.monotonic_s())
        clock.advance_s(0.1)
    let_in(limits, clock, request(9))
    refused(limits, clock, request(10))


def test_settling_replaces_the_estimate_by_what_was_used() -> None:
    limits, clock = limiter(LimitRule(name="t", tokens_per_min=1_000, output_token_weight=3.0))
    reservation = let_in(limits, clock, request(1, prompt_bytes=400, output_tokens_max=100))
    assert [units for _, units, _ in reservation.spent] == [400]
    usage = Usage(prompt_tokens=50, completion_tokens=10)
    limits.settle(reservation, usage, started=True, now_s=clock.monotonic_s())
    assert limits.rows(clock.monotonic_s())[0]["remaining"] == 1_000 - 50 - 3 * 10


def test_using_more_than_estimated_is_charged() -> None:
    limits, clock = limiter(LimitRule(name="t", tokens_per_min=1_000))
    reservation = let_in(limits, clock, request(1, prompt_bytes=4, output_tokens_max=1))
    usage = Usage(prompt_tokens=800, completion_tokens=400)
    limits.settle(reservation, usage, started=True, now_s=clock.monotonic_s())
    assert refused(limits, clock, request(2, prompt_bytes=4, output_tokens_max=1)).reason == "limit:t:tokens"


def test_a_started_request_without_usage_keeps_its_estimate() -> None:
    limits, clock = limiter(LimitRule(name="t", tokens_per_min=1_000))
    reservation = let_in(limits, clock, request(1))
    limits.settle(reservation, None, started=True, now_s=clock.monotonic_s())
    assert limits.rows(clock.monotonic_s())[0]["remaining"] == 800


def test_a_request_larger_than_the_limit_waits_for_an_empty_window() -> None:
    limits, clock = limiter(LimitRule(name="t", tokens_per_min=100))
    let_in(limits, clock, request(1, prompt_bytes=40, output_tokens_max=10))
    refused(limits, clock, request(2, output_tokens_max=100_000))
    clock.advance_s(61.1)
    let_in(limits, clock, request(3, output_tokens_max=100_000))


def test_a_question_is_answered_by_the_counters_that_decide_and_makes_none() -> None:
    rules = [
        LimitRule(name="r", requests_per_min=2, tokens_per_min=1_000, concurrency_max=1),
        LimitRule(name="other", model="qwen", requests_per_min=1),
    ]
    limits, clock = limiter(*rules)

    def told() -> dict[object, tuple[object, ...]]:
        rows = limits.explain(request(99, prompt_bytes=400, output_tokens_max=100))
        return {row["counter"]: (row["left"], row["of"], row["asks"], row["room"]) for row in rows}

    assert told() == {
        "r:team:requests": (2, 2, 1, True),
        "r:team:tokens": (1_000, 1_000, 200, True),
        "r:team:slots": (1, 1, 1, True),
    }
    assert limits.rows(clock.monotonic_s()) == []
    let_in(limits, clock, request(1, prompt_bytes=400, output_tokens_max=850))
    assert told() == {
        "r:team:requests": (1, 2, 1, True),
        "r:team:tokens": (50, 1_000, 200, False),
        "r:team:slots": (0, 1, 1, False),
    }
    assert refused(limits, clock, request(2)).reason == "limit:r:tokens"


def test_headers_speak_of_the_tightest_counter() -> None:
    limits, clock = limiter(
        LimitRule(name="a", requests_per_min=100), LimitRule(name="b", requests_per_min=7, tokens_per_min=1_000)
    )
    lines = limits.lines(let_in(limits, clock, request(1)), clock.monotonic_s())
    assert lines.split(b"\r\n") == [
        b"x-ratelimit-limit-requests: 7",
        b"x-ratelimit-remaining-requests: 6",
        b"x-ratelimit-reset-requests: 1m1s",
        b"x-ratelimit-limit-tokens: 1000",
        b"x-ratelimit-remaining-tokens: 800",
        b"x-ratelimit-reset-tokens: 1m1s",
        b"",
    ]


def test_a_refusal_tells_what_is_left_and_when_to_come_back() -> None:
    limits, clock = limiter(LimitRule(name="a", requests_per_min=1))
    let_in(limits, clock, request(1))
    clock.advance_s(20.0)
    error = refused(limits, clock, request(2))
    assert error.retry_after_s == pytest.approx(41.0)
    assert dict(error.headers)[b"x-ratelimit-remaining-requests"] == b"0"
    assert dict(error.headers)[b"x-ratelimit-reset-requests"] == b"41s"


def test_a_refusal_speaks_of_the_counter_that_refused_though_another_is_smaller() -> None:
    small, large = (LimitRule(name=name, tokens_per_min=limit) for name, limit in (("small", 120), ("large", 500)))
    limits, clock = limiter(msgspec.structs.replace(small, model="qwen"), large)
    let_in(limits, clock, request(1, prompt_bytes=400, output_tokens_max=250))
    error = refused(limits, clock, request(2, model="qwen", prompt_bytes=40, output_tokens_max=200))
    told = dict(error.headers)
    assert error.reason == "limit:large:tokens"
    assert told[b"x-ratelimit-limit-tokens"] == b"500"
    assert told[b"x-ratelimit-remaining-tokens"] == b"0", "150 are left, but none for this request"


def test_no_rule_no_cost_no_headers() -> None:
    limits, clock = limiter()
    reservation = let_in(limits, clock, request(1))
    limits.settle(reservation, Usage(), started=True, now_s=clock.monotonic_s())
    assert limits.lines(reservation, clock.monotonic_s()) == b""
    assert limits.rows(clock.monotonic_s()) == []


def test_new_rules_keep_what_was_counted() -> None:
    limits, clock = limiter(LimitRule(name="r", requests_per_min=3))
    for number in range(3):
        let_in(limits, clock, request(number))
    limits.apply([LimitRule(name="r", requests_per_min=5)])
    let_in(limits, clock, request(3))
    let_in(limits, clock, request(4))
    refused(limits, clock, request(5))


def test_an_override_holds_until_it_is_removed() -> None:
    limits, clock = limiter(LimitRule(name="r", requests_per_min=1))
    let_in(limits, clock, request(1))
    limits.heed({"r": {"requests_per_min": 2}, "absent": {"requests_per_min": 9}})
    assert limits.rules[0].requests_per_min == 2
    let_in(limits, clock, request(2))
    limits.apply([LimitRule(name="r", requests_per_min=1)])
    assert limits.rules[0].requests_per_min == 2, "a policy reload does not undo the operator"
    limits.heed({})
    assert limits.rules[0].requests_per_min == 1


@pytest.mark.parametrize("change", [{"requests_per_min": 0}, {"per": 1}, {"nonsense": 5}])
def test_a_nonsense_override_is_refused(change: dict[str, int]) -> None:
    limits, _ = limiter(LimitRule(name="r", requests_per_min=1))
    with pytest.raises(ValueError, match="cannot be changed so"):
        limits.check("r", change)
    with pytest.raises(ValueError, match="no limit is named"):
        limits.check("absent", {"requests_per_min": 5})
    assert overridden(limits.rules[0], None) is limits.rules[0]


def test_a_flood_of_names_takes_no_counter_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "COUNTERS_MAX", 10)
    limits, clock = limiter(LimitRule(name="r", requests_per_min=2, per=("tenant", "model")))
    let_in(limits, clock, request(0, tenant="before"))
    for number in range(11):
        let_in(limits, clock, request(f"f{number}", tenant="flood", model=f"made-up-{number}"))
    limits.apply(limits.rules)
    refused(limits, clock, request("more", tenant="flood", model="another"))
    let_in(limits, clock, request(1, tenant="before"))
    refused(limits, clock, request(2, tenant="before"))
    for tenant in ("late", "later"):
        let_in(limits, clock, request(f"{tenant}-0", tenant=tenant))
        let_in(limits, clock, request(f"{tenant}-1", tenant=tenant))
        refused(limits, clock, request(f"{tenant}-2", tenant=tenant))


@pytest.mark.slow
def test_clients_cannot_make_counters_without_end() -> None:
    counters = Counters([LimitRule(name="r", requests_per_min=5, per=("model",))], region="", local=True)
    for number in range(COUNTERS_MAX + 50):
        counters.plan_of(request(0, model=f"m{number}"), 1.0)
    assert len(counters.rates) <= COUNTERS_MAX + 1
    for _ in range(300):
        counters.sweep(500.0, 500)
    assert len(counters.rates) == 0


@pytest.mark.parametrize(
    ("rules", "fields", "message"),
    [
        ([LimitRule(name="a", requests_per_min=1)] * 2, {}, "used twice"),
        ([LimitRule(name="a")], {}, "limits nothing"),
        ([LimitRule(name="a", requests_per_min=1, region="eu")], {"region": ""}, "has none"),
        ([LimitRule(name="a", requests_per_min=1, per=("region",))], {"region": ""}, "has none"),
        ([LimitRule(name="a", requests_per_min=1)], {"processes": 4}, "4 times"),
    ],
)
def test_limits_that_cannot_be_enforced_are_refused(
    rules: list[LimitRule], fields: dict[str, int | str], message: str
) -> None:
    given = {"region": "eu", "shared": False, "processes": 1, **fields}
    (fault,) = rule_faults(rules, **given)
    assert message in fault


def test_limits_that_can_be_enforced_pass() -> None:
    good = [LimitRule(name="a", requests_per_min=1), LimitRule(name="b", concurrency_max=3)]
    assert not list(rule_faults(good, region="", shared=True, processes=8))
    assert not list(rule_faults(good, region="", shared=False, processes=1))


def test_bytes_per_token_are_learned_for_each_model() -> None:
    estimator = TokenEstimator()
    code, prose = ModelId("code"), ModelId("prose")
    assert estimator.prompt_tokens(code, 400) == 100
    for _ in range(200):
        estimator.observe(code, 400, Usage(prompt_tokens=200, completion_tokens=40))
        estimator.observe(prose, 400, Usage(prompt_tokens=1, completion_tokens=1, estimated=True))
    assert estimator.prompt_tokens(code, 400) == pytest.approx(200, rel=0.02)
    assert estimator.output_tokens(code, None) == pytest.approx(40, abs=1)
    assert estimator.output_tokens(code, 7) == 7
    assert estimator.prompt_tokens(prose, 400) == 100


def test_each_of_several_answers_is_reserved_for() -> None:
    limits, clock = limiter(LimitRule(name="r", tokens_per_min=10_000))
    many = msgspec.structs.replace(request(), choices=8)
    assert [units for _, units, _ in let_in(limits, clock, many).spent] == [100 + 8 * 100]
    uncapped = msgspec.structs.replace(request(1, output_tokens_max=None), choices=8)
    assert [units for _, units, _ in let_in(limits, clock, uncapped).spent] == [100 + 8 * 256]


def test_what_is_learned_is_bounded() -> None:
    estimator = TokenEstimator()
    for number in range(1_500):
        estimator.observe(ModelId(f"m{number}"), 400, Usage(prompt_tokens=1))
    assert len(estimator._learned) == 1_000
    assert estimator.prompt_tokens(ModelId("m1499"), 400) >= 400 / 32


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3.0, b"0ms"), (0.0, b"0ms"), (0.0001, b"1ms"), (0.25, b"250ms"), (1.0, b"1s"), (6.2, b"6.2s"), (60.0, b"1m0s"),
     (125.0, b"2m5s")],
)  # fmt: skip
def test_durations_read_as_openai_writes_them(seconds: float, text: bytes) -> None:
    assert duration(seconds) == text


def test_the_memory_store_is_known_as_local() -> None:
    assert isinstance(MemoryStore(ManualClock()), LocalLimitStore)
