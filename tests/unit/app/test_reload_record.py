"""What is remembered of reloads of the configuration."""

from __future__ import annotations

from pointsman.app.reload_record import ReloadRecord
from pointsman.conditions import Blocks
from pointsman.config.command_line import parse_run
from pointsman.config.reload import NoChange, Rejected


def test_a_rejected_configuration_is_a_condition_until_the_next_good_one() -> None:
    record = ReloadRecord()
    (found,) = record.conditions()
    assert found.is_true
    record.on_decision(Rejected("mode: unknown"))
    (found,) = record.conditions()
    assert (found.type, found.reason) == ("Configuration", "ReloadRejected")
    assert found.message == "the new configuration is not used: mode: unknown"
    assert found.does_block(Blocks.SERVICES)
    assert not found.does_block(Blocks.READINESS)
    record.on_decision(NoChange(parse_run([], program="pointsman")))
    (found,) = record.conditions()
    assert found.is_true
    (event,) = record.history.list_events()
    assert (event.kind, event.parameters) == ("ConfigurationRejected", {"error": "mode: unknown"})
