"""Where a figure of the report comes from."""

from __future__ import annotations

from typing import Literal

Provenance = Literal["measured", "inferred", "assumed"]
"""`measured`: recorded, or computed from nothing but what was. `inferred`: follows from what was recorded by a rule or
a fit that can be wrong. `assumed`: rests on figures of the literature or a data sheet, or on a premise that nothing
recorded confirms."""
