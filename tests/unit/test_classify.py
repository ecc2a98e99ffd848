"""Which requests are ours, how much they matter, which pool serves them."""

from __future__ import annotations

import pytest

from extproc.classify import Classifier, HeadClass
from extproc.config import Policy, parse_policy
from extproc.model import DEFAULT_TENANT, Api, Priority
from extproc.request import BodyFacts, RequestHead

P0, P1, P2 = Priority


def post(path: str = "/v1/chat/completions", **headers: str) -> RequestHead:
    return RequestHead("POST", path, {name.replace("_", "-"): value for name, value in headers.items()})


class Untenanted:
    """A classifier where everybody is the default tenant."""

    def __init__(self, policy: Policy) -> None:
        self._classifier = Classifier(policy)
        self.body = self._classifier.body

    def head(self, head: RequestHead) -> HeadClass | None:
        return self._classifier.head(head, DEFAULT_TENANT)


PLAIN = Untenanted(parse_policy("{}"))
TRUSTING = Untenanted(parse_policy("trust: {headers: [x-priority]}"))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("GET", "/health"),
        ("HEAD", "/v1/chat/completions"),
        ("OPTIONS", "/v1/chat/completions"),
        ("GET", "/v1/chat/completions"),
        ("POST", "/v1/messages/count_tokens"),
        ("POST", "/tokenize"),
        ("POST", "/v1/audio/transcriptions"),
        ("POST", "/"),
        ("POST", ""),
        ("", ""),
    ],
)
def test_what_is_not_inference_passes(method: str, path: str) -> None:
    assert PLAIN.head(RequestHead(method, path, {})) is None


@pytest.mark.parametrize(
    ("path", "api", "generates"),
    [
        ("/v1/chat/completions", Api.OPENAI, True),
        ("/v1/chat/completions?api-version=1", Api.OPENAI, True),
        ("/v1/completions/", Api.OPENAI, True),
        ("/openai/deployments/x/chat/completions", Api.OPENAI, True),
        ("/v1/responses", Api.OPENAI, True),
        ("/v1/chat%2Fcompletions", Api.OPENAI, True),
        ("/v1%2fchat/completion%73?x=%3F", Api.OPENAI, True),
        ("/v1/completions%2F", Api.OPENAI, True),
        ("/v1/messages", Api.ANTHROPIC, True),
        ("/generate", Api.OPENAI, True),
        ("/v2/models/ensemble/generate_stream", Api.OPENAI, True),
        ("/invocations", Api.OPENAI, True),
        ("/v1/embeddings", Api.OPENAI, False),
        ("/v1/rerank", Api.OPENAI, False),
    ],
)
def test_what_is_inference_is_ours(path: str, api: Api, generates: bool) -> None:
    found = PLAIN.head(post(path))
    assert found is not None
    assert (found.api, found.generates, found.priority) == (api, generates, P1)


@pytest.mark.parametrize("value", ["P0", "p0", " P0 ", "realtime", "realtime-interactive"])
def test_a_trusted_header_sets_the_priority(value: str) -> None:
    found = TRUSTING.head(post(x_priority=value))
    assert found is not None
    assert found.priority is P0


@pytest.mark.parametrize("value", ["0", "", "P9", "highest", "P0, P0"])
def test_nonsense_in_a_trusted_header_changes_nothing(value: str) -> None:
    found = TRUSTING.head(post(x_priority=value))
    assert found is not None
    assert found.priority is P1


def test_a_header_nobody_trusts_is_not_believed() -> None:
    found = PLAIN.head(post(x_priority="P0"))
    assert found is not None
    assert found.priority is P1


RULED = Untenanted(
    parse_policy(
        """
        pools: [{name: small, models: [tiny]}, {name: large}]
        classification:
          - {when: {header: {x-internal: "*"}}, bypass: true}
          - {when: {path: /v1/embeddings}, priority: P2}
          - {when: {header: {x-team: research}}, priority: P2, pool: small}
          - {when: {path: /think}, priority: P1}
          - {when: {service_tier: flex}, priority: P2}
          - {when: {model: vip}, priority: P0}
        """.replace("service_tier", "serviceTier")
    )
)


def test_rules_on_headers_and_paths() -> None:
    assert RULED.head(post(x_internal="yes")) is None
    embedding = RULED.head(post("/v1/embeddings"))
    assert embedding is not None
    assert embedding.priority is P2
    research = RULED.head(post(x_team="research"))
    assert research is not None
    assert (research.priority, research.pool) == (P2, "small")
    assert RULED.head(post("/think")) is not None


@pytest.mark.parametrize(
    ("facts", "priority", "pool"),
    [
        (BodyFacts(), P1, "large"),
        (BodyFacts(model="tiny"), P1, "small"),
        (BodyFacts(model="never heard of"), P1, "large"),
        (BodyFacts(service_tier="flex"), P2, "large"),
        (BodyFacts(model="vip"), P0, "large"),
        (BodyFacts(model="vip", service_tier="flex"), P2, "large"),
    ],
)
def test_rules_on_the_body_wait_for_it(facts: BodyFacts, priority: Priority, pool: str) -> None:
    head = post()
    head_class = RULED.head(head)
    assert head_class is not None
    assert not head_class.settled
    assert RULED.body(head, head_class, facts) == (priority, pool)


def test_without_rules_on_the_body_the_headers_settle_it() -> None:
    found = TRUSTING.head(post(x_priority="P2"))
    assert found is not None
    assert found.settled
    assert TRUSTING.body(post(), found, BodyFacts(model="vip")) == (P2, "default")


def test_a_rule_on_a_path_holds_however_the_client_spells_it() -> None:
    """vLLM's router decodes the path: a spelling must not slip past the rule, nor past the limit."""
    ruled = Untenanted(parse_policy("classification: [{when: {path: /v1/embeddings}, priority: P2}]"))
    found = ruled.head(post("/v1%2Fembedding%73"))
    assert found is not None
    assert found.priority == P2
