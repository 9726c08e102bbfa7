"""Why a Service answers or not, the same live and offline. Pure."""
