from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Condition(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONDITION_UNSPECIFIED: _ClassVar[Condition]
    CONDITION_SERVING: _ClassVar[Condition]
    CONDITION_DRAINING: _ClassVar[Condition]
    CONDITION_WARMING: _ClassVar[Condition]
CONDITION_UNSPECIFIED: Condition
CONDITION_SERVING: Condition
CONDITION_DRAINING: Condition
CONDITION_WARMING: Condition

class AgentMessage(_message.Message):
    __slots__ = ("hello", "beat", "goodbye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    beat: Beat
    goodbye: Goodbye
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class RouterMessage(_message.Message):
    __slots__ = ("welcome", "ack")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    ack: Ack
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("cluster", "region", "zone", "data_url", "tier", "price_per_slot_hour", "epoch", "agent_version", "labels", "schema")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    DATA_URL_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    PRICE_PER_SLOT_HOUR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    region: str
    zone: str
    data_url: str
    tier: str
    price_per_slot_hour: float
    epoch: int
    agent_version: str
    labels: _containers.ScalarMap[str, str]
    schema: int
    def __init__(self, cluster: _Optional[str] = ..., region: _Optional[str] = ..., zone: _Optional[str] = ..., data_url: _Optional[str] = ..., tier: _Optional[str] = ..., price_per_slot_hour: _Optional[float] = ..., epoch: _Optional[int] = ..., agent_version: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., schema: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("beat_interval_ms", "peers", "policy_version", "router_id", "schema")
    BEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    beat_interval_ms: int
    peers: _containers.RepeatedScalarFieldContainer[str]
    policy_version: int
    router_id: str
    schema: int
    def __init__(self, beat_interval_ms: _Optional[int] = ..., peers: _Optional[_Iterable[str]] = ..., policy_version: _Optional[int] = ..., router_id: _Optional[str] = ..., schema: _Optional[int] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("epoch", "seq", "pools", "condition", "warnings")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    seq: int
    pools: _containers.RepeatedCompositeFieldContainer[Pool]
    condition: Condition
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[int] = ..., seq: _Optional[int] = ..., pools: _Optional[_Iterable[_Union[Pool, _Mapping]]] = ..., condition: _Optional[_Union[Condition, str]] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class Pool(_message.Message):
    __slots__ = ("model", "pods_ready", "pods_warming", "slots_total", "slots_free", "running", "waiting", "waiting_tokens", "kv_tokens_total", "kv_tokens_used", "prefill_tokens_per_s", "decode_tokens_per_s", "service_rate_per_s", "ttft_p50_s", "ttft_p95_s", "error_rate", "adapters_resident", "adapters_loadable", "context_tokens_max", "cards")
    class CardsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PODS_READY_FIELD_NUMBER: _ClassVar[int]
    PODS_WARMING_FIELD_NUMBER: _ClassVar[int]
    SLOTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FREE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_USED_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    SERVICE_RATE_PER_S_FIELD_NUMBER: _ClassVar[int]
    TTFT_P50_S_FIELD_NUMBER: _ClassVar[int]
    TTFT_P95_S_FIELD_NUMBER: _ClassVar[int]
    ERROR_RATE_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_RESIDENT_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_LOADABLE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_MAX_FIELD_NUMBER: _ClassVar[int]
    CARDS_FIELD_NUMBER: _ClassVar[int]
    model: str
    pods_ready: int
    pods_warming: int
    slots_total: int
    slots_free: int
    running: int
    waiting: int
    waiting_tokens: int
    kv_tokens_total: int
    kv_tokens_used: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    service_rate_per_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    error_rate: float
    adapters_resident: _containers.RepeatedScalarFieldContainer[str]
    adapters_loadable: _containers.RepeatedScalarFieldContainer[str]
    context_tokens_max: int
    cards: _containers.ScalarMap[str, str]
    def __init__(self, model: _Optional[str] = ..., pods_ready: _Optional[int] = ..., pods_warming: _Optional[int] = ..., slots_total: _Optional[int] = ..., slots_free: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., waiting_tokens: _Optional[int] = ..., kv_tokens_total: _Optional[int] = ..., kv_tokens_used: _Optional[int] = ..., prefill_tokens_per_s: _Optional[float] = ..., decode_tokens_per_s: _Optional[float] = ..., service_rate_per_s: _Optional[float] = ..., ttft_p50_s: _Optional[float] = ..., ttft_p95_s: _Optional[float] = ..., error_rate: _Optional[float] = ..., adapters_resident: _Optional[_Iterable[str]] = ..., adapters_loadable: _Optional[_Iterable[str]] = ..., context_tokens_max: _Optional[int] = ..., cards: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("epoch", "seq", "reason")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    seq: int
    reason: str
    def __init__(self, epoch: _Optional[int] = ..., seq: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("epoch", "seq", "refused", "directives")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    DIRECTIVES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    seq: int
    refused: str
    directives: _containers.RepeatedCompositeFieldContainer[Directive]
    def __init__(self, epoch: _Optional[int] = ..., seq: _Optional[int] = ..., refused: _Optional[str] = ..., directives: _Optional[_Iterable[_Union[Directive, _Mapping]]] = ...) -> None: ...

class Directive(_message.Message):
    __slots__ = ("drain", "limit")
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    drain: Drain
    limit: Limit
    def __init__(self, drain: _Optional[_Union[Drain, _Mapping]] = ..., limit: _Optional[_Union[Limit, _Mapping]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Limit(_message.Message):
    __slots__ = ("model", "concurrency_max")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_MAX_FIELD_NUMBER: _ClassVar[int]
    model: str
    concurrency_max: int
    def __init__(self, model: _Optional[str] = ..., concurrency_max: _Optional[int] = ...) -> None: ...
