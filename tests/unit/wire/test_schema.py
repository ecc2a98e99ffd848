"""Our upb classes and betterproto2's own codec agree on every message, in both directions."""

from __future__ import annotations

import pytest
from envoy_data_plane.envoy.service.ext_proc.v3 import ProcessingRequest as PlainRequest
from envoy_data_plane.envoy.service.ext_proc.v3 import ProcessingResponse as PlainResponse
from hypothesis import HealthCheck, given, settings

from extproc.wire.schema import ProcessingRequest, ProcessingResponse, SchemaError, build
from tests.unit.wire.strategies import messages

pytestmark = pytest.mark.filterwarnings(
    "ignore:.* is deprecated:DeprecationWarning"
)  # deprecated fields are tried as well
_SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@_SETTINGS
@given(messages(PlainRequest))
def test_requests_survive_the_way_through_both_codecs(plain: PlainRequest) -> None:
    ours = ProcessingRequest.FromString(bytes(plain))
    ours.DiscardUnknownFields()  # a field that our schema lacks would be lost here
    assert PlainRequest.parse(ours.SerializeToString()) == plain


@_SETTINGS
@given(messages(PlainResponse))
def test_responses_survive_the_way_through_both_codecs(plain: PlainResponse) -> None:
    ours = ProcessingResponse.FromString(bytes(plain))
    ours.DiscardUnknownFields()
    assert PlainResponse.parse(ours.SerializeToString()) == plain


def test_an_empty_member_of_a_oneof_is_seen() -> None:
    ours = ProcessingResponse()
    ours.request_headers.SetInParent()
    assert ours.SerializeToString() == b"\x0a\x00"
    assert PlainResponse.parse(b"\x0a\x00").request_headers is not None


def test_a_shape_that_is_not_known_is_an_error_at_import() -> None:
    with pytest.raises(SchemaError, match="neither a message nor an enum"):
        build(int)
