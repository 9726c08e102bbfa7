"""KubeProxyConfiguration: types, defaults, flags, validation, loading."""
