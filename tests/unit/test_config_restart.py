"""A change that needs a restart is named when it is made: in the log, on the admin port, in a gauge, by field."""

from pathlib import Path
from typing import Any

from gir.control.config import RouterConfig, restart_fields
from tests.unit.test_config_check import KEY, LIMIT, taken, text
from tests.unit.test_config_reload import File


def test_fields_are_named_as_an_operator_writes_them() -> None:
    def changed(**sections: Any) -> tuple[str, ...]:
        return restart_fields(taken(), taken(**sections))

    assert changed() == changed(policy={"limits": [LIMIT]}) == ()
    assert changed(listen="127.0.0.1:1", workers=2) == ("listen", "workers")
    assert changed(admin={"public_metrics": True}, drain={"listen_s": 1}) == ("admin.public_metrics", "drain.listen_s")
    assert changed(auth={"api_keys": [{**KEY, "id": "other"}]}) == ("auth.api_keys",)
    assert changed(agents=[{"cluster": "eu-1", "token": {"value": "new"}}]) == ("agents",)
    assert changed(store={"kind": "redis", "url": {"value": "redis://:pw@h"}}) == ("store.kind", "store.url")


def test_a_section_that_comes_or_goes_is_named_as_a_whole(tmp_path: Path) -> None:
    for name in ("c.pem", "k.pem"):
        (tmp_path / name).touch()

    def read(**sections: Any) -> RouterConfig:
        return taken(base=tmp_path, **sections)

    assert restart_fields(read(), read(tls={"cert": "c.pem", "key": "k.pem"})) == ("tls",)


def test_a_reload_tells_which_fields_wait_for_a_restart(tmp_path: Path) -> None:
    file = File(tmp_path)
    file.write(text())
    policies = file.policies()
    file.write(text(workers=2, listen="127.0.0.1:1"))
    policies.look()
    told = [fields["fields"] for level, event, fields in file.log.lines if level == "warning" and "next start" in event]
    assert told == [("listen", "workers")]
    assert (policies.restart_needed, file.metrics.restart_needed.one.value) == (("listen", "workers"), 2)
    file.write(text())
    policies.look()
    assert (policies.restart_needed, file.metrics.restart_needed.one.value) == ((), 0)
