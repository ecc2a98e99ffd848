"""What our checks look at in an Envoy file, wherever it stands: in a bootstrap, a snippet, or patches for a mesh."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from extproc.check.tree import Tree


@dataclass(frozen=True, slots=True)
class Envoy:
    """`complete`: a bootstrap, where what is not written has Envoy's default; elsewhere it is unknown."""

    complete: bool
    ext_procs: tuple[Tree, ...]
    header_mutations: tuple[Tree, ...]
    rate_limits: tuple[Tree, ...]
    managers: tuple[Tree, ...]
    listeners: tuple[Tree, ...]
    clusters: tuple[Tree, ...]

    def cluster(self, name: str) -> Tree | None:
        return next((cluster for cluster in self.clusters if cluster.get("name").text() == name), None)

    def protected_managers(self) -> Iterator[tuple[Tree, Tree]]:
        """Each connection manager that has an ext_proc filter, with that filter's config."""
        for ext_proc in self.ext_procs:
            yield from ((manager, ext_proc) for manager in self.managers if manager.holds(ext_proc))

    def listener_of(self, tree: Tree) -> Tree | None:
        return next((listener for listener in self.listeners if listener.holds(tree)), None)


def view(documents: Sequence[Tree]) -> Envoy:
    """Collects from all documents of one file."""
    mappings = [tree for document in documents for tree in document.walk()]

    def typed(name: str) -> tuple[Tree, ...]:
        return tuple(tree for tree in mappings if tree.type_name() == name)

    resources = [document.get("static_resources") for document in documents]
    return Envoy(
        complete=any(resource.given for resource in resources),
        ext_procs=typed("ExternalProcessor"),
        header_mutations=typed("HeaderMutation"),
        rate_limits=typed("RateLimit"),
        managers=typed("HttpConnectionManager"),
        listeners=tuple(item for resource in resources for item in resource.get("listeners").items()),
        clusters=tuple(tree for tree in mappings if _is_cluster(tree)),
    )


def routes(manager: Tree) -> Iterator[tuple[Tree, Tree]]:
    """Each virtual host and its routes that forward requests through extproc."""
    for host in manager.get("route_config", "virtual_hosts").items():
        for route in host.get("routes").items():
            if route.get("route").given and not _switched_off(route):
                yield host, route


def targets(route: Tree) -> list[str]:
    """The clusters a route may forward to, as far as they are written down."""
    action = route.get("route")
    weighted = action.get("weighted_clusters", "clusters").items()
    names = [action.get("cluster").text(), *(item.get("name").text() for item in weighted)]
    return [name for name in names if name]


def addresses(cluster: Tree) -> list[str]:
    """`host:port` of each endpoint of a cluster, IPv6 in brackets."""
    found: list[str] = []
    for locality in cluster.get("load_assignment", "endpoints").items():
        for item in locality.get("lb_endpoints").items():
            address = item.get("endpoint", "address", "socket_address")
            host, port = address.get("address").text(), int(address.get("port_value").number(0))
            found.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return found


def threshold(cluster: Tree) -> Tree:
    """The circuit breaker for requests of default priority; a Tree of None where there is none."""
    thresholds = cluster.get("circuit_breakers", "thresholds")
    default = [item for item in thresholds.items() if item.get("priority").text("DEFAULT") == "DEFAULT"]
    return default[0] if default else Tree(thresholds.path, None)


def _is_cluster(tree: Tree) -> bool:
    placed = tree.get("load_assignment").given or tree.get("connect_timeout").given
    return placed and bool(tree.get("name").text())


def _switched_off(route: Tree) -> bool:
    overrides = route.get("typed_per_filter_config").walk()
    return any(tree.type_name() == "ExtProcPerRoute" and tree.get("disabled").flag() for tree in overrides)
