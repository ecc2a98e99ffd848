"""Engine model, workloads, virtual time, the fake engine over HTTP, the demo. Nothing in the product imports it but the command line."""
