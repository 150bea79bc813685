"""The policy follows its file: good versions are taken whole, bad ones change nothing but the stated reason."""

import asyncio
import os
from pathlib import Path

import pytest
from prometheus_client.registry import CollectorRegistry

from gir.clock import Clock, ManualClock
from gir.control.config import load
from gir.control.policies import LAST_GOOD, SETTLING_S, Policies, boot
from gir.model.policy import PolicySnapshot
from gir.place.lacking import FleetLacksError
from gir.settings import ConfigError
from gir.telemetry.metrics import RouterMetrics
from tests.support.beats import Log
from tests.unit.test_config_check import LIMIT, TIER, text

BAD = "policy: {tiers: 7}"


class File:
    """A configuration file, its state directory, and the policies that follow it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "router.yaml"
        self.state = folder / "state"
        self.metrics = RouterMetrics(CollectorRegistry())
        self.log = Log()
        self.adopted: list[PolicySnapshot] = []
        self.edits = 0

    def write(self, content: str) -> None:
        """Replace the file, with a stamp of its own however fast the clock is."""
        self.path.write_text(content)
        self.edits += 1
        os.utime(self.path, ns=(self.edits, self.edits))

    def policies(self, clock: Clock | None = None) -> Policies:
        config, rejected = boot(self.path, self.state)
        policies = Policies(
            config,
            self.path,
            clock=clock or ManualClock(),
            metrics=self.metrics,
            log=self.log,  # type: ignore[arg-type]
            state=self.state,
            rejected=rejected,
        )
        policies.on_change(self.adopted.append)
        return policies

    def count(self, result: str) -> float:
        return self.metrics.policy_reloads.child(result).value


@pytest.fixture
def file(tmp_path: Path) -> File:
    made = File(tmp_path)
    made.write(text())
    return made


def test_a_changed_policy_is_adopted_with_the_next_version(file: File) -> None:
    policies = file.policies()
    before = policies.current
    assert not policies.look()
    file.write(text(policy={"tiers": [TIER]}))
    assert policies.look()
    assert (before.version, policies.current.version) == (1, 2)
    assert [tier.name for tier in policies.current.tiers] == ["reserved"]
    assert policies.current.digest != before.digest
    assert file.adopted == [policies.current]
    assert file.count("taken") == 1


def test_a_bad_version_is_refused_as_a_whole_and_said_once(file: File) -> None:
    policies = file.policies()
    file.write(BAD)
    assert not policies.look()
    assert not policies.look()
    assert policies.current.version == 1
    assert "policy.tiers is 7" in policies.rejected
    assert (file.count("rejected"), file.metrics.policy_rejected.one.value) == (1, 1)
    assert file.log.events() == ["policy refused; the last good one stays"]
    assert repr(policies) == "<Policies version 1 REJECTED>"


TARGETS = [{"model": "a", "weight": 1}, {"model": "b", "weight": 2_000_000}]
CYCLE = [{"name": "a", "aliases": ["b"]}, {"name": "b", "aliases": ["a"]}]


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"placement": {"weights": {"queue": 0.1}}}, "policy.placement.weights.queue"),
        ({"placement": {"weights": {"rtt": 11}}}, "policy.placement.weights.rtt"),
        ({"rewrites": [{"name": "r", "matches": [{}], "targets": TARGETS}]}, "policy.rewrites[0].targets[1].weight"),
        ({"tiers": [{"name": "spot"}]}, "policy.tiers[0].price_per_slot_hour"),
        ({"tenants": [{"id": "t", "regions": []}]}, "policy.tenants[0].regions"),
        ({"clusters": [{"id": "c", "tenants": []}]}, "policy.clusters[0].tenants"),
        ({"models": CYCLE}, "policy.models[0].aliases[0]"),
    ],
)
def test_placement_that_cannot_be_meant_is_refused_by_field_and_the_old_policy_stays(
    file: File, policy: dict[str, object], field: str
) -> None:
    policies = file.policies()
    before = policies.current
    file.write(text(policy=policy))
    assert not policies.look()
    assert field in policies.rejected
    assert policies.current is before
    assert file.adopted == []


def test_a_good_version_after_a_bad_one_is_taken(file: File) -> None:
    policies = file.policies()
    file.write(BAD)
    policies.look()
    file.write(text(policy={"tiers": [TIER]}))
    assert policies.look()
    assert (policies.rejected, policies.current.version, file.metrics.policy_rejected.one.value) == ("", 2, 0)


def test_a_part_that_refuses_keeps_the_old_policy(file: File) -> None:
    policies = file.policies()

    def refuse(policy: PolicySnapshot) -> None:
        raise ValueError("auth.api_keys_file cannot be read")

    policies.on_change(refuse)
    file.write(text(policy={"tiers": [TIER]}))
    assert not policies.look()
    assert (policies.current.version, policies.rejected) == (1, "auth.api_keys_file cannot be read")


class Fleet:
    """What the review of a policy finds, as a test wants it."""

    def __init__(self) -> None:
        self.refuses = self.lacks = ""

    def review(self, policy: PolicySnapshot, before: PolicySnapshot) -> tuple[str, ...]:
        if self.refuses and policy is not before:
            raise FleetLacksError(self.refuses)
        return (self.lacks,) if self.lacks else ()


def test_a_policy_the_fleet_cannot_serve_is_refused_and_taken_once_it_can(file: File) -> None:
    policies, fleet = file.policies(), Fleet()
    policies.on_change(file.adopted.append, fleet.review)
    fleet.refuses = "targets[1].model is 'next', which no cluster serves"
    file.write(text(policy={"tiers": [TIER]}))
    assert not policies.look()
    assert not policies.look()
    assert (policies.current.version, policies.rejected, file.adopted) == (1, fleet.refuses, [])
    assert (file.count("rejected"), file.metrics.policy_rejected.one.value) == (1, 1)
    fleet.refuses = ""
    assert policies.look(), "deployed in the meantime: nobody has to touch the file"
    assert (policies.current.version, policies.rejected, len(file.adopted)) == (2, "", 1)
    assert not policies.look()


def test_a_refused_policy_is_not_waited_for_once_the_file_says_something_else(file: File) -> None:
    policies, fleet = file.policies(), Fleet()
    policies.on_change(file.adopted.append, fleet.review)
    fleet.refuses = "targets[1].model is 'next', which no cluster serves"
    file.write(text(policy={"tiers": [TIER]}))
    policies.look()
    file.write(BAD)
    policies.look()
    fleet.refuses = ""
    assert not policies.look()
    assert "policy.tiers is 7" in policies.rejected
    assert file.adopted == []


def test_what_the_fleet_may_lack_is_a_warning_told_once_and_gone_with_its_cause(file: File) -> None:
    policies, fleet = file.policies(), Fleet()
    policies.on_change(file.adopted.append, fleet.review)
    fleet.lacks = "targets[1].model is 'next' (not heard from yet: b)"
    file.write(text(policy={"tiers": [TIER]}))
    assert policies.look()
    assert policies.warnings == (fleet.lacks,)
    policies.look()
    assert file.log.events() == ["policy asks for what the fleet lacks", "policy taken"]
    fleet.lacks = ""
    policies.look()
    assert policies.warnings == ()


def test_a_start_with_a_target_nobody_has_is_told_when_the_fleet_has_had_time_to_report(file: File) -> None:
    clock, fleet = ManualClock(), Fleet()
    policies = file.policies(clock)
    policies.on_change(file.adopted.append, fleet.review)
    fleet.lacks = "targets[1].model is 'next'"
    policies.look()
    assert policies.warnings == (fleet.lacks,), "whoever asks is told at once"
    assert file.log.events() == []
    clock.advance_s(SETTLING_S)
    policies.look()
    assert file.log.events() == ["policy asks for what the fleet lacks"]


def test_a_missing_file_is_a_reason_and_its_return_a_cure(file: File) -> None:
    policies = file.policies()
    file.path.unlink()
    assert not policies.look()
    assert "No such file" in policies.rejected
    file.write(text())
    policies.look()
    assert (policies.rejected, policies.current.version) == ("", 1)


def test_a_comment_is_no_new_policy(file: File) -> None:
    policies = file.policies()
    file.write("# hello\n" + text())
    assert not policies.look()
    assert (policies.current.version, file.adopted) == (1, [])


def test_what_needs_a_restart_is_named(file: File) -> None:
    policies = file.policies()
    file.write(text(listen="127.0.0.1:1234", policy={"limits": [LIMIT]}))
    assert policies.look()
    assert policies.restart_needed == ("listen",)
    assert "settings outside policy changed; they take effect at the next start" in file.log.events()
    file.write(text(policy={"limits": [LIMIT]}))
    policies.look()
    assert policies.restart_needed == ()


def test_a_restart_with_a_bad_file_serves_by_the_last_good_one(file: File) -> None:
    policies = file.policies()
    file.write(text(policy={"tiers": [TIER]}))
    policies.look()
    file.write(BAD)
    policies.look()
    again = file.policies()
    assert [tier.name for tier in again.current.tiers] == ["reserved"]
    assert "policy.tiers is 7" in again.rejected
    assert file.metrics.policy_rejected.one.value == 1
    file.write(text())
    assert again.look()
    assert again.rejected == ""


def test_the_last_good_copy_resolves_paths_as_the_file_did(file: File) -> None:
    (file.path.parent / "token").write_text("abc")
    file.write(text(agents=[{"cluster": "eu-1", "token": {"file": "token"}}]))
    policies = file.policies()
    policies._keep_booted()
    file.write(BAD)
    config, rejected = boot(file.path, file.state)
    assert config.tokens() == {"eu-1": "abc"}
    assert rejected


def test_the_copy_is_for_no_other_eyes(file: File) -> None:
    file.policies()._keep_booted()
    kept = file.state / LAST_GOOD
    assert kept.read_text() == file.path.read_text()
    assert kept.stat().st_mode & 0o077 == 0


def test_a_copy_that_cannot_be_written_is_a_warning(file: File) -> None:
    file.state.write_text("in the way")
    policies = file.policies()
    policies._keep_booted()
    assert file.log.events() == ["last good configuration not kept"]


def test_without_a_copy_a_bad_file_does_not_start(file: File) -> None:
    file.write(BAD)
    with pytest.raises(ConfigError, match=r"policy\.tiers is 7"):
        boot(file.path, file.state)
    with pytest.raises(ConfigError):
        boot(file.path, None)


class EditingClock(ManualClock):
    """Edits the file during the first pause and ends the watch at the second."""

    def __init__(self, file: File, content: str) -> None:
        super().__init__()
        self.edits = [content]
        self.file = file

    async def sleep_s(self, duration_s: float) -> None:
        if not self.edits:
            raise asyncio.CancelledError
        self.file.write(self.edits.pop())
        self.advance_s(duration_s)


async def test_the_watch_finds_changes_by_itself(file: File) -> None:
    policies = file.policies(EditingClock(file, text(policy={"tiers": [TIER]})))
    with pytest.raises(asyncio.CancelledError):
        await policies.run()
    assert policies.current.version == 2
    assert load(file.state / LAST_GOOD).policy.digest == policies.current.digest
    assert file.metrics.policy_age_s.one.value == 1.0
