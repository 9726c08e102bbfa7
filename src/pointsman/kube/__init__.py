"""The Kubernetes API as seen by a proxy: credentials, list and watch, the few objects needed."""
