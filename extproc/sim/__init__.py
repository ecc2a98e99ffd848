"""Engine model, workloads, virtual time, the fake engine over HTTP, the demo. Only the command line imports it."""
