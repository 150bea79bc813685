"""The home of a prompt nobody here has seen: replicas agree, load is bounded, few keys move."""

import pytest

from gir.model.cluster import ClusterStatus
from gir.model.prefix import CLUSTER_BLOCK_BYTES, prefix_hashes
from gir.model.request import Api
from gir.place import Placer
from gir.place.rendezvous import Rendezvous, key_of
from gir.wire.openai import peek
from tests.support.placing import NOW_S, cluster, names, plan, request, view


def ring(count: int, weight: float = 8.0) -> Rendezvous:
    return Rendezvous(tuple((f"c{number}", weight) for number in range(count)))


def homes(of: Rendezvous, keys: int = 20_000) -> list[str]:
    return [of.order(key_of(f"key-{number}"))[0] for number in range(keys)]


@pytest.mark.parametrize("count", [3, 10])
def test_adding_or_removing_a_cluster_moves_few_keys(count):
    before, after = homes(ring(count)), homes(ring(count + 1))
    moved = sum(one != two for one, two in zip(before, after, strict=True)) / len(before)
    assert moved <= 1.5 / (count + 1)
    assert all(two == f"c{count}" for one, two in zip(before, after, strict=True) if one != two)


def test_a_cluster_that_leaves_moves_only_its_own_keys():
    whole = ring(5)
    without = Rendezvous(tuple(member for member in whole.weights if member[0] != "c2"))
    for one, two in zip(homes(whole), homes(without), strict=True):
        assert one in {two, "c2"}


def test_seven_equal_clusters_are_home_to_equal_shares():
    """13.3 to 15.4 % each is what a managed service measured of its own prefix routing over seven instances."""
    got = homes(ring(7))
    assert all(0.133 <= got.count(f"c{number}") / len(got) <= 0.154 for number in range(7))


def test_prompts_of_token_ids_that_are_equally_long_have_homes_of_their_own():
    fleet, placer = view(*(cluster(f"c{number}") for number in range(4))), Placer()

    def home(start: int) -> str:
        ids = ",".join(str(100_000 + start * 5_000 + number) for number in range(4_000))
        seen = peek(Api.COMPLETIONS, f'{{"model":"llama","prompt":[{ids}]}}'.encode()).prompt
        hashes = prefix_hashes("llama", seen, block_bytes=CLUSTER_BLOCK_BYTES)
        asked = request(prefix_hashes=hashes, prompt_tokens_estimate=4_000)
        return names(plan(placer, fleet, asked))[0]

    assert len({home(start) for start in range(20)}) == 4


def test_homes_follow_capacity():
    uneven = Rendezvous((("big", 30.0), ("small", 10.0), ("none", 0.0)))
    got = homes(uneven)
    assert got.count("big") / len(got) == pytest.approx(0.75, abs=0.02)
    assert got.count("none") == 0


def cold(number: int) -> object:
    hashes = tuple(key_of(f"{number}/{block}") for block in range(40))
    return request(f"r{number}", prefix_hashes=hashes, prompt_tokens_estimate=5_600)


def test_replicas_agree_on_the_home_of_a_prompt_neither_has_seen():
    fleet = view(*(cluster(f"c{number}") for number in range(4)))
    one, two = Placer(), Placer()
    for number in range(50):
        asked = cold(number)
        assert names(plan(one, fleet, asked, draw=0.1))[0] == names(plan(two, fleet, asked, draw=0.9))[0]


def test_a_home_over_its_bound_passes_the_prompt_on():
    placer = Placer()
    fleet = view(cluster("a"), cluster("b"), cluster("c"))
    asked = cold(1)
    home = names(plan(placer, fleet, asked))[0]
    for number in range(6):
        placer.dispatched(cold(100 + number), home, NOW_S)
    terms = {
        each.cluster: {term.name for term in each.terms} for each in plan(placer, fleet, asked, explain=True).ranked
    }
    assert "home" not in terms[home]
    assert any("home" in listed for listed in terms.values())


def test_a_session_has_a_home_before_it_is_known():
    fleet = view(*(cluster(f"c{number}") for number in range(4)))
    seen = {names(plan(Placer(), fleet, request(session_key="s-1"), draw=step / 10))[0] for step in range(10)}
    assert len(seen) == 1


def test_a_flap_moves_only_the_keys_of_the_cluster_that_flaps():
    members = [cluster(f"c{number}") for number in range(4)]
    placer = Placer()
    before = [names(plan(placer, view(*members), cold(number)))[0] for number in range(40)]
    members[1] = cluster("c1", status=ClusterStatus.DEAD)
    during = [names(plan(placer, view(*members, version=2), cold(number)))[0] for number in range(40)]
    for one, two in zip(before, during, strict=True):
        assert one in {two, "c1"}


def test_homes_move_when_a_cluster_grows():
    members = [cluster(f"c{number}") for number in range(3)]
    placer = Placer()
    before = [names(plan(placer, view(*members), cold(number)))[0] for number in range(60)]
    members[1] = cluster("c1", load={"slots_total": 160, "slots_free": 160})
    after = [names(plan(placer, view(*members, version=2), cold(number)))[0] for number in range(60)]
    assert after.count("c1") > 1.5 * before.count("c1")
    assert all(two in {one, "c1"} for one, two in zip(before, after, strict=True))
