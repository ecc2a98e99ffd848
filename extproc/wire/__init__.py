"""Edges: Envoy's protocols over gRPC. Protobuf stays in here."""
