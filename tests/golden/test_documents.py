"""What the README and the operations page say is true: policies parse, Envoy snippets are valid, names and outcomes exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.core import TyperGroup, TyperOption

from extproc.admin import names
from extproc.classify import Classifier
from extproc.cli import app
from extproc.config import load_policy, parse_policy
from extproc.model import DEFAULT_TENANT, End, Outcome
from extproc.outcomes import ANSWERS
from extproc.ports import WireEvent
from extproc.request import RequestHead

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")

BOOTSTRAP = """
static_resources:
  listeners:
    - address: {socket_address: {address: 127.0.0.1, port_value: 0}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: gateway
                route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: []}]}
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters: []
"""


def blocks(text: str) -> list[Any]:
    """The fenced YAML blocks, parsed; a block inside a list item is indented as a whole."""
    found = re.findall(r"^( *)```yaml\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    return [yaml.safe_load(re.sub(rf"^{indent}", "", block, flags=re.MULTILINE)) for indent, block in found]


def policies() -> list[Any]:
    return [block for block in blocks(README) if isinstance(block, dict)]


def test_the_readme_shows_two_policies_and_both_parse_alone_and_together() -> None:
    first, second = policies()
    for shown in (first, second, first | second):
        parse_policy(yaml.safe_dump(shown))


def test_the_first_policy_of_the_readme_is_the_default_as_it_says() -> None:
    first, _ = policies()
    assert parse_policy(yaml.safe_dump(first)) == parse_policy("{}")


def test_the_example_policy_parses_and_reads_the_engines_of_the_compose_file() -> None:
    policy = load_policy(str(ROOT / "docs" / "policy.yaml"))
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    engines = tuple(f"{name}:8000" for name in services if name.startswith("engine-"))
    assert policy.pools[0].engines.static == engines


def test_envoy_accepts_the_snippets_of_the_readme(tmp_path: Path) -> None:
    (cluster,), (ext_proc,) = (block for block in blocks(README) if isinstance(block, list))
    config = yaml.safe_load(BOOTSTRAP)
    config["static_resources"]["clusters"].append(cluster)
    manager_of(config)["http_filters"].insert(0, ext_proc)
    validate(config, tmp_path / "envoy.yaml")


def manager_of(config: Any) -> Any:
    return config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


def validate(config: Any, file: Path) -> None:
    """By Envoy itself."""
    envoy = shutil.which("envoy") or shutil.which("envoy", path=str(Path(sys.executable).parent))
    if envoy is None:
        pytest.skip("no Envoy binary")
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    seen = subprocess.run([envoy, "--mode", "validate", "-c", file], capture_output=True, text=True, timeout=20)
    assert seen.returncode == 0, seen.stderr


def test_the_pools_of_the_operations_page_are_those_of_its_routes(tmp_path: Path) -> None:
    shown, routes, _ = blocks(OPERATIONS)
    policy = parse_policy(yaml.safe_dump(shown))
    chat, reasoning = (pool.name for pool in policy.pools)
    classifier = Classifier(policy)
    of_header: dict[str, dict[str, str]] = {chat: {}, reasoning: {"x-model-pool": reasoning}}
    for pool, headers in of_header.items():
        found = classifier.head(RequestHead("POST", "/v1/chat/completions", headers), DEFAULT_TENANT)
        assert found is not None
        assert found.pool == pool
    assert [route["route"]["cluster"] for route in routes] == [reasoning, chat]
    config = yaml.safe_load(BOOTSTRAP)
    config["static_resources"]["clusters"] = [{"name": name, "connect_timeout": "1s"} for name in (chat, reasoning)]
    manager_of(config)["route_config"]["virtual_hosts"][0]["routes"] = routes
    validate(config, tmp_path / "envoy.yaml")


def test_the_readme_lists_every_refusal_as_it_is_sent() -> None:
    rows = re.findall(r"^\| [^|]+ \| (\d+) \| `([a-z-]+)` \| (yes|no)", README, re.MULTILINE)
    written = {reason: (int(status), retry == "yes") for status, reason, retry in rows}
    backstop = written.pop("backstop")  # Envoy's own
    assert backstop == (429, True)
    assert written == {answer.reason: (answer.status, answer.retry_after) for answer in ANSWERS.values()}


def test_alerts_use_names_and_label_values_that_exist() -> None:
    document = blocks(OPERATIONS)[-1]
    alerts = document["groups"][0]["rules"]
    known = {name.name for name in names.ALL}
    known |= {f"{name.name}_bucket" for name in names.ALL if name.kind is names.Kind.HISTOGRAM}
    values = {str(value) for enum in (Outcome, End, WireEvent) for value in enum} | {"P0", "extproc"}
    assert len({alert["alert"] for alert in alerts}) == len(alerts) > 5
    for alert in alerts:
        assert set(re.findall(r"extproc_[a-z_]+", alert["expr"])) <= known, alert
        for quoted in re.findall(r'"([^"]+)"', alert["expr"]):
            assert set(quoted.split("|")) <= values, alert
        assert alert["expr"].count("(") == alert["expr"].count(")"), alert


@pytest.mark.parametrize("command", ["serve", "scrape", "top", "demo", "engine"])
def test_the_readme_lists_every_flag_with_its_variable_and_default(command: str) -> None:
    table = README.split(f"| flag of `{command}` |")[1].split("\n\n")[0]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-2]] for line in table.splitlines()[2:]]
    main = typer.main.get_command(app)
    assert isinstance(main, TyperGroup)
    options = [p for p in main.commands[command].params if isinstance(p, TyperOption) and p.name != "help"]
    assert sorted(rows) == sorted(_row(option, with_variable=command in ("serve", "scrape")) for option in options)


def _row(option: TyperOption, *, with_variable: bool) -> list[str]:
    flag = option.opts[0]
    variable = [str(option.envvar)] if with_variable else []
    if option.required:
        return [flag, *variable, "required"]
    default: Any = option.default
    shown = (
        "off"
        if default is False
        else ""
        if default is None
        else f"{default:g}"
        if isinstance(default, float)
        else default
    )
    return [flag, *variable, str(shown)]


@pytest.mark.parametrize("file", ["README.md", "docs/operations.md"])
def test_links_lead_somewhere(file: str) -> None:
    path = ROOT / file
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / link).exists(), link
