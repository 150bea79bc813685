"""GET /v1/models is the union over live clusters, with the engines' own fields."""

import json

from gir.catalog import Catalog
from gir.model.cluster import ClusterState, ClusterStatus, ClusterView, Intent, PoolState, index_view
from gir.model.ids import ClusterId, ModelId, RegionId, TenantId, TierName
from gir.model.policy import ModelPolicy, PolicySnapshot
from gir.model.request import Principal

LLAMA, LORA = ModelId("llama"), ModelId("llama-sql")
ANYBODY = Principal(tenant=TenantId("t"), key_id="k")


def _cluster(
    name: str,
    *models: str,
    status: ClusterStatus = ClusterStatus.HEALTHY,
    intent: Intent = Intent.SERVE,
    cards: dict[ModelId, str] | None = None,
    adapters: frozenset[ModelId] = frozenset(),
) -> ClusterState:
    pools = {
        ModelId(model): PoolState(model=ModelId(model), cards=cards or {}, adapters_resident=adapters)
        for model in models
    }
    return ClusterState(
        id=ClusterId(name),
        region=RegionId("r"),
        tier=TierName("t"),
        url="http://127.0.0.1:1",
        status=status,
        intent=intent,
        pools=pools,
    )


def _ids(view: ClusterView, policy: PolicySnapshot | None = None, principal: Principal = ANYBODY) -> list[str]:
    body = json.loads(Catalog().body(view, policy or PolicySnapshot(), principal))
    assert body["object"] == "list"
    return [card["id"] for card in body["data"]]


def test_union_without_duplicates_in_name_order() -> None:
    view = index_view(1, (_cluster("b", "qwen", "llama"), _cluster("a", "llama", adapters=frozenset({LORA}))))
    assert _ids(view) == ["llama", "llama-sql", "qwen"]


def test_dead_and_drained_clusters_are_not_listed() -> None:
    view = index_view(
        1, (_cluster("a", "gone", status=ClusterStatus.DEAD), _cluster("b", "drained", intent=Intent.DRAIN))
    )
    assert _ids(view) == []


def test_unknown_fields_of_the_engine_survive() -> None:
    card = '{"id":"llama","object":"model","max_model_len":2048,"x_new":{"a":1}}'
    view = index_view(1, (_cluster("a", "llama", cards={LLAMA: card}),))
    assert card.encode() in Catalog().body(view, PolicySnapshot(), ANYBODY)


def test_aliases_are_listed_and_hidden_models_are_not() -> None:
    view = index_view(1, (_cluster("a", "llama", "secret"),))
    policy = PolicySnapshot(
        models=(ModelPolicy(name=LLAMA, aliases=("gpt-4o",)), ModelPolicy(name=ModelId("secret"), hidden=True))
    )
    assert _ids(view, policy) == ["gpt-4o", "llama"]


def test_a_tenant_sees_what_it_may_use() -> None:
    view = index_view(1, (_cluster("a", "llama", "qwen"),))
    policy = PolicySnapshot(models=(ModelPolicy(name=LLAMA, aliases=("fast",)),))
    narrow = Principal(tenant=TenantId("t"), key_id="k", models_allowed=frozenset({LLAMA}))
    assert _ids(view, policy, narrow) == ["fast", "llama"]


def test_one_model_is_shown_as_it_is_listed() -> None:
    view = index_view(1, (_cluster("a", "org/llama", "qwen", "secret"),))
    hidden = ModelPolicy(name=ModelId("secret"), hidden=True)
    policy = PolicySnapshot(models=(ModelPolicy(name=ModelId("org/llama"), aliases=("fast",)), hidden))
    narrow = Principal(tenant=TenantId("t"), key_id="k", models_allowed=frozenset({ModelId("org/llama")}))

    def shown(name: str) -> str | None:
        card = Catalog().card(view, policy, narrow, name)
        return None if card is None else json.loads(card)["id"]

    assert [shown(name) for name in ("org/llama", "fast", "qwen", "secret", "none")] == ["org/llama", "fast"] + [
        None
    ] * 3


def test_a_new_view_makes_a_new_listing() -> None:
    catalog, policy = Catalog(), PolicySnapshot()
    first = catalog.body(index_view(1, (_cluster("a", "llama"),)), policy, ANYBODY)
    view = index_view(2, (_cluster("a", "llama", "qwen"),))
    second = catalog.body(view, policy, ANYBODY)
    assert first != second
    assert catalog.body(view, policy, ANYBODY) is second
