"""Why a Service answers or not, and what the proxy is doing: pure reports, the same live and offline."""
