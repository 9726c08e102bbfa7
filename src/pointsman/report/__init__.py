"""What the proxy is doing, as values and as text: status, verification, the overview of all Services. Pure."""
