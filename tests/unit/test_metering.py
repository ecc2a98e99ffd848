"""What people see of quotas."""

from __future__ import annotations

from collections.abc import Callable

from extproc.metering import MOST_SHOWN, tenant_snapshots
from extproc.model import Allowance, Tenant


class Used:
    """A `Quota` of which the tenants have used so many requests."""

    def __init__(self, **requests: int) -> None:
        self.requests = requests

    def wait_s(self, tenant: Tenant, tokens: float) -> float:
        raise AssertionError("looking decides nothing")

    def reserve(self, tenant: Tenant, tokens: float) -> Callable[[], None]:
        raise AssertionError("looking reserves nothing")

    def left(self, tenant: Tenant) -> tuple[float, float]:
        return float("inf"), 60.0 - self.requests.get(tenant.name, 0)


def tenant(name: str) -> Tenant:
    return Tenant(name, quota=Allowance(requests_per_s=1))


def test_the_least_left_comes_first_and_who_has_no_quota_not_at_all() -> None:
    shown = tenant_snapshots([tenant("a"), Tenant("free"), tenant("b"), tenant("c")], Used(a=1, b=60, c=30))
    assert [(one.name, one.share_left) for one in shown] == [("b", 0.0), ("c", 0.5), ("a", 59 / 60)]


def test_thousands_of_tenants_are_no_page_of_thousands() -> None:
    many = [tenant(f"t{number}") for number in range(3000)]
    shown = tenant_snapshots(many, Used(t2999=5))
    assert len(shown) == MOST_SHOWN
    assert shown[0].name == "t2999"
