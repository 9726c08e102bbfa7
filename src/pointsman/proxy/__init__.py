"""The assembled proxy: source, trackers, sync loops, backends and servers put together, live or offline."""
