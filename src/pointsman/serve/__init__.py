"""HTTP endpoints: health, metrics, status, service health checks."""
