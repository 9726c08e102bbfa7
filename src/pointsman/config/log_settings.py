"""The `logging` block of the configuration as the settings of our log."""

from __future__ import annotations

from pointsman.config.types import Logging
from pointsman.obs.log import LogSettings


def log_settings(logging: Logging) -> LogSettings:
    """Settings to pass to `pointsman.obs.log.configure`."""
    routing = logging.options.json if logging.format == "json" else logging.options.text
    return LogSettings(
        format=logging.format,
        verbosity=logging.verbosity,
        vmodule=tuple((item.file_pattern, item.verbosity) for item in logging.vmodule),
        split_stream=routing.split_stream,
        info_buffer_size=routing.info_buffer_size,
        flush_seconds=logging.flush_frequency.total_seconds(),
    )
