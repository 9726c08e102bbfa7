"""Where objects come from: an API server or a directory of manifests."""
