"""What `extproc simulate` runs beside scenarios."""

from __future__ import annotations

from typer.testing import CliRunner

from extproc.cli import app
from extproc.sim.world.knobs import KNOBS
from extproc.sim.world.scenarios import SCENARIOS
from extproc.sim.world.studies import STUDIES


def test_only_baselines_are_tuned() -> None:
    done = CliRunner().invoke(app, ["simulate", "tune", "--controller", "fixed,none"])
    assert done.exit_code == 1
    assert f"expected some of {', '.join(KNOBS)}, got 'none'" in done.output


def test_no_study_is_called_like_a_scenario() -> None:
    assert not STUDIES.keys() & {"all", *SCENARIOS}
