"""How many times slower than an ordinary machine this one may be: deadlines of tests are that many times as long.

1 unless POINTSMAN_TEST_PATIENCE says otherwise; `tests.kernels` sets it for emulated processors.
"""

from __future__ import annotations

import os
from typing import Final

PATIENCE: Final = float(os.environ.get("POINTSMAN_TEST_PATIENCE", "1"))
